// Package conformance runs the Gateway API's own conformance suite against Vestibule, and some of its tests again with
// listeners that Vestibule has.
package conformance

import (
	"bytes"
	"slices"
	"testing"
	"testing/fstest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/gateway-api/conformance"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
)

// needHTTP are core tests of both profiles that stand on HTTP or HTTPS listeners. Vestibule refuses those: to call one
// Accepted and Programmed that nothing serves would pass these tests and be false.
var needHTTP = map[string]string{
	"GatewayInvalidRouteKind":                   "its listeners are HTTP, their supportedKinds HTTPRoute",
	"GatewayInvalidTLSConfiguration":            "its listeners are HTTPS",
	"GatewayListenerUnsupportedProtocol":        "expects an HTTP listener beside the invalid one to be accepted",
	"GatewayModifyListeners":                    "its listeners are HTTP and HTTPS, its routes HTTPRoutes",
	"GatewayObservedGenerationBump":             "waits until an HTTP listener is programmed",
	"GatewaySecretInvalidReferenceGrant":        "its listeners are HTTPS",
	"GatewaySecretMissingReferenceGrant":        "its listeners are HTTPS",
	"GatewaySecretReferenceGrantAllInNamespace": "its listeners are HTTPS",
	"GatewaySecretReferenceGrantSpecific":       "its listeners are HTTPS",
	"TCPRouteInvalidNonTCPListener":             "waits until an HTTP listener is programmed",
	"TLSRouteInvalidNoMatchingListener":         "waits until an HTTP listener is programmed",
}

// baseManifests is where the suite finds our copy: files of one path in several file systems would be joined.
const baseManifests = "vestibule/base.yaml"

// passedOver makes the suite's readiness checks pass over a Gateway; an annotation that the suite defines.
const passedOver = `metadata:
  annotations: {gateway-api/skip-this-for-readiness: "true"}
`

// TestUpstream runs the suite's tests as they are. The four Gateways that the suite makes before any test have HTTP and
// HTTPS listeners, which Vestibule refuses: they stay in the cluster and nothing waits for them.
func TestUpstream(t *testing.T) {
	options := optionsFor(t)
	options.ConformanceProfiles = []suite.ConformanceProfileName{
		suite.GatewayTLSConformanceProfileName,
		suite.GatewayTCPConformanceProfileName,
	}
	for test, reason := range needHTTP {
		options.SkipTests = append(options.SkipTests, test)
		t.Logf("skip: %s: %s", test, reason)
	}
	slices.Sort(options.SkipTests)
	conformance.RunConformanceWithOptions(t, options)
}

// optionsFor reads the suite's flags, puts our copy of the base manifests in place, and waits until nothing of an
// earlier run is left.
func optionsFor(t *testing.T) suite.ConformanceOptions {
	t.Helper()
	options := conformance.DefaultOptions(t)
	clear(t, options.Client)
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
	return options
}

// clear deletes the suite's namespaces and waits until they are gone: the suite itself does not wait, nothing can be
// made in one that is being deleted, and Gateways of a run that was killed would fail the next.
func clear(t *testing.T, cluster client.Client) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(500 * time.Millisecond) {
		var namespaces corev1.NamespaceList
		if err := cluster.List(t.Context(), &namespaces, client.HasLabels{"gateway-conformance"}); err != nil {
			t.Fatal(err)
		}
		if len(namespaces.Items) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("namespaces of an earlier run stay, %s first", namespaces.Items[0].Name)
		}
		for _, namespace := range namespaces.Items {
			if namespace.DeletionTimestamp == nil {
				if err := client.IgnoreNotFound(cluster.Delete(t.Context(), &namespace)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}
