{{- define "type_members" -}}
{{- if eq .Name "metadata" -}}
the metadata of every Kubernetes object
{{- else -}}
{{ .Doc | replace "\n" " " | markdownRenderFieldDoc | trimSuffix "<br />" }}
{{- end -}}
{{- end -}}

{{- define "default" -}}
{{- $default := markdownRenderDefault .Default -}}
{{- if gt (len $default) 80 }}see the description{{ else }}{{ $default }}{{ end -}}
{{- end -}}
