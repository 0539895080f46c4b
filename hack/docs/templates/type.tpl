{{- define "type" -}}
{{- $type := . -}}
{{- if markdownShouldRenderType $type }}

### {{ $type.Name }}

{{ $type.Doc }}
{{- if $type.References }}

Used by{{ range $i, $ref := $type.SortedReferences }}{{ if $i }},{{ end }} {{ markdownRenderTypeLink $ref }}{{ end }}.
{{- end }}
{{- if $type.Members }}

| Field | Description | Default | Limits |
| --- | --- | --- | --- |
{{- if $type.GVK }}
| `apiVersion` _string_ | `{{ $type.GVK.Group }}/{{ $type.GVK.Version }}` | | |
| `kind` _string_ | `{{ $type.GVK.Kind }}` | | |
{{- end }}
{{- range $type.Members }}
| `{{ .Name }}` _{{ markdownRenderType .Type }}_ | {{ template "type_members" . }} | {{ template "default" . }} | {{ template "limits" .Validation }} |
{{- end }}
{{- end }}
{{- if $type.EnumValues }}

| Value | Meaning |
| --- | --- |
{{- range $type.EnumValues }}
| `{{ .Name }}` | {{ markdownRenderFieldDoc .Doc | trimSuffix "<br />" }} |
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "limits" -}}
{{- $shown := 0 -}}
{{- range . -}}
{{- if not (hasPrefix "Optional" .) -}}
{{- if $shown }}, {{ end -}}
{{- if hasPrefix "Required" . }}required{{ else }}{{ markdownRenderFieldDoc . | trimSuffix " " }}{{ end -}}
{{- $shown = add $shown 1 -}}
{{- end -}}
{{- end -}}
{{- end -}}
