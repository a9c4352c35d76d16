{{/*
Names are fixed and not the release's: there is one installation in a cluster, because there is one node, one
controllerName and one loadBalancerClass.
*/}}

{{- define "vestibule.labels" -}}
{{ include "vestibule.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: vestibule
{{- if .root.Values.helmLabels }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* What selects pods never changes. */}}
{{- define "vestibule.selector" -}}
app.kubernetes.io/name: vestibule
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "vestibule.image" -}}
{{- $image := .Values.image -}}
{{- with $image.registry }}{{ . }}/{{ end -}}
{{- $image.repository -}}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default .Chart.AppVersion }}{{ end -}}
{{- end }}

{{/* Not empty: Services are ours that are not of our own class, so that MetalLB may serve them, too. */}}
{{- define "vestibule.adopts" -}}
{{- if or .Values.defaultLoadBalancerClass (without (.Values.loadBalancerClasses | default list) "vestibule.dev/lb") -}}
true
{{- end }}
{{- end }}

{{/* Whether Ingresses are read: to serve them, or to take out of their status what was written. */}}
{{- define "vestibule.ingresses" -}}
{{- if or .Values.ingress.listeners .Values.ingress.clear }}yes{{ end }}
{{- end }}

{{/* Exactly what `vestibule agent|controller --config` reads, and reads again when it changes. */}}
{{- define "vestibule.config" -}}
addresses:
  ranges: {{ toJson .Values.addresses.ranges }}
  shared: {{ toJson .Values.addresses.shared }}
  {{- with .Values.addresses.tlsPorts }}
  tlsPorts: {{ toJson . }}
  {{- end }}
  excluded: {{ toJson .Values.addresses.excluded }}
  {{- /* Processes of the release before know none of these: an upgrade alone changes nothing for them. */}}
  {{- if .Values.addresses.l2 }}
  l2: true
  {{- end }}
  {{- with .Values.addresses.rebalanceAfter }}
  {{- if ne . "10m" }}
  rebalanceAfter: {{ . }}
  {{- end }}
  {{- end }}
  {{- if eq (.Values.addresses.onIsolation | default "Hold") "Withdraw" }}
  onIsolation: Withdraw
  {{- end }}
{{- $grace := int64 (.Values.agentGraceSeconds | default 15) }}
{{- if ne $grace 15 }}
agentGraceSeconds: {{ $grace }}
{{- end }}
devices: {{ toJson .Values.devices }}
settings:
  maxFlows: {{ int64 .Values.settings.maxFlows }}
  maxNames: {{ int64 .Values.settings.maxNames }}
  maxHellos: {{ int64 .Values.settings.maxHellos }}
  {{- with .Values.settings.flowsPerRoute }}
  flowsPerRoute: {{ int64 . }}
  {{- end }}
  flowsPerSource: {{ int64 .Values.settings.flowsPerSource }}
  {{- with .Values.settings.connectingPerSource }}
  connectingPerSource: {{ int64 . }}
  {{- end }}
  idleTimeout: {{ .Values.settings.idleTimeout }}
  helloTimeout: {{ .Values.settings.helloTimeout }}
  sourcePorts: {{ quote .Values.settings.sourcePorts }}
  sourceAddresses: {{ toJson .Values.settings.sourceAddresses }}
  {{- with .Values.settings.xdpDevices }}
  xdpDevices: {{ toJson . }}
  {{- end }}
  {{- if eq (toString .Values.settings.nodeClients) "false" }}
  nodeClients: false
  {{- end }}
  {{- with .Values.settings.l2 }}
  l2:
    {{- range $rate, $frames := . }}
    {{ $rate }}: {{ int64 $frames }}
    {{- end }}
  {{- end }}
probe:
  enabled: {{ .Values.probe.enabled }}
  type: {{ .Values.probe.type }}
  interval: {{ .Values.probe.interval }}
  timeout: {{ .Values.probe.timeout }}
  failureThreshold: {{ int64 .Values.probe.failureThreshold }}
  successThreshold: {{ int64 .Values.probe.successThreshold }}
  panicShare: {{ int64 .Values.probe.panicShare }}
savedState:
  maxAge: {{ .Values.savedState.maxAge }}
{{- if include "vestibule.ingresses" . }}
ingress:
  listeners: {{ toJson .Values.ingress.listeners }}
  adopt: {{ toJson .Values.ingress.adopt }}
{{- end }}
{{- with .Values.metallb.namespaces }}
metallb:
  namespaces: {{ toJson . }}
{{- end }}
{{- if include "vestibule.adopts" . }}
loadBalancerClasses: {{ toJson (.Values.loadBalancerClasses | default list) }}
defaultLoadBalancerClass: {{ .Values.defaultLoadBalancerClass }}
{{- end }}
{{- if .Values.serveHealthCheckNodePorts }}
serveHealthCheckNodePorts: true
{{- end }}
{{- with .Values.listeners }}
listeners: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.routes }}
routes: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Who a pod is, for Leases, NodeState, Events and logs. */}}
{{- define "vestibule.env" -}}
- name: NODE_NAME
  valueFrom: { fieldRef: { fieldPath: spec.nodeName } }
- name: POD_NAME
  valueFrom: { fieldRef: { fieldPath: metadata.name } }
- name: POD_NAMESPACE
  valueFrom: { fieldRef: { fieldPath: metadata.namespace } }
- name: VESTIBULE_LOG
  value: {{ quote .Values.logLevel }}
{{- end }}
