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

{{- /* How routers reach each other: mesh or redis; empty if they do not. An `off` without quotes is no word to YAML. */ -}}
{{- define "maitre.via" -}}
{{- if has .Values.cluster.via (list "mesh" "redis") -}}{{ .Values.cluster.via }}{{- end -}}
{{- end -}}

{{- /* The Secret with the key that routers share; empty if there is none. */ -}}
{{- define "maitre.clusterKey" -}}
{{- if .Values.cluster.key.existing -}}
{{- .Values.cluster.key.existing -}}
{{- else if eq (include "maitre.via" .) "mesh" -}}
{{- include "maitre.name" . -}}-cluster
{{- end -}}
{{- end -}}

{{- /* The Secret with the certificate of the listener; empty if it speaks plain text. */ -}}
{{- define "maitre.tls" -}}
{{- if .Values.tls.secret -}}
{{- .Values.tls.secret -}}
{{- else if and .Values.picker.enabled .Values.picker.tls -}}
{{- include "maitre.name" . -}}-picker-tls
{{- end -}}
{{- end -}}
