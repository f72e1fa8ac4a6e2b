{{- define "maitre.name" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 53 | trimSuffix "-" -}}
{{- end -}}

{{- define "maitre.selector" -}}
app.kubernetes.io/name: maitre
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "maitre.labels" -}}
{{ include "maitre.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "maitre.secret" -}}
{{- if .Values.secret.existing -}}
{{- .Values.secret.existing -}}
{{- else if .Values.secret.create -}}
{{- include "maitre.name" . -}}
{{- end -}}
{{- end -}}

{{- /* Whether the API is asked where workers are; empty if not. */ -}}
{{- define "maitre.asks" -}}
{{- range .Values.discovery.from -}}
{{- if hasPrefix "kubernetes:" . -}}yes{{- end -}}
{{- end -}}
{{- end -}}
