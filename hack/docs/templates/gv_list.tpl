{{- define "gvList" -}}
<!-- Made by `make generate` from the comments in api/. Do not edit. -->

# API reference
{{ range . }}
{{ template "gvDetails" . }}
{{- end }}
{{- end -}}
