{{- /* A setting as its variable has it: Helm reads whole numbers as 1.048576e+06 when they are large. */}}
{{- define "rocmforge.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- end }}
