{{- define "gpushare.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains "gpushare" .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What never changes between two versions: a DaemonSet's selector cannot. */}}
{{- define "gpushare.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "gpushare.labels" -}}
{{ include "gpushare.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "gpushare.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}

{{- define "gpushare.priorityClass" -}}
{{- default (ternary (printf "%s-%s" (include "gpushare.fullname" .) .Release.Namespace | trimSuffix "-") "" .Values.priorityClass.create) .Values.priorityClass.name -}}
{{- end -}}

{{/* No right but what its user has, and no file but in its volumes. */}}
{{- define "gpushare.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* Where the Hub serves the pages. */}}
{{- define "gpushare.prefix" -}}
{{ printf "/%s/services/%s/" (trimAll "/" .Values.hub.baseUrl) .Values.hub.service | replace "//" "/" }}
{{- end -}}

{{- define "gpushare.nodeConfig" -}}
{{- $app := dict "hub" true "shared" true "socket" "/run/jupyter-gpushare/node.sock" "ledger" "/var/lib/jupyter-gpushare/ledger.sqlite" "gpus" "all" "metrics_address" "0.0.0.0" "metrics_port" .Values.node.metricsPort -}}
{{- $ours := dict "NodeManagerApp" $app "Hub" (dict "service" .Values.hub.service) -}}
{{- if .Values.pool.enabled -}}
{{- $_ := set $app "pool_listen" "0.0.0.0:10205" -}}
{{- else -}}
{{- $_ := set $ours "Quotas" .Values.quotas -}}
{{- end -}}
{{ mergeOverwrite $ours (deepCopy .Values.node.config) | toPrettyJson }}
{{- end -}}

{{- define "gpushare.poolConfig" -}}
{{- $pool := dict "folder" "/var/lib/jupyter-gpushare-pool/pool" "socket" "/run/jupyter-gpushare/pool.sock" "address" (printf "%s-pool.%s.svc" (include "gpushare.fullname" .) .Release.Namespace) "authority_file" "/etc/jupyter-gpushare-authority/authority.pem" "join_token_file" "/etc/jupyter-gpushare-join/join-token" "join_token_engine" "Kubernetes node" "metrics_address" "0.0.0.0" "metrics_port" 9465 "quotas" .Values.quotas -}}
{{- $ours := dict "Pool" $pool "GpuShareHub" (dict "pool" true "url" "http://0.0.0.0:10204") -}}
{{ mergeOverwrite $ours (deepCopy .Values.pool.config) | toPrettyJson }}
{{- end -}}

{{- define "gpushare.dns" -}}
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
{{- end -}}

{{- define "gpushare.metrics" -}}
- ports: [{port: metrics, protocol: TCP}]
  {{- with .Values.networkPolicy.metricsFrom }}
  from: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* A network policy counts the port of the Hub's pod, which is that of its service by default. */}}
{{- define "gpushare.hubPort" -}}
{{ default "80" (regexFind "[0-9]+$" (urlParse .Values.hub.apiUrl).host) }}
{{- end -}}
