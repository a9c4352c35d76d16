package conformance

import (
	"embed"
	"path"
	"regexp"
	"testing"
	"testing/fstest"

	v1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/gateway-api/conformance"
	"sigs.k8s.io/gateway-api/conformance/tests"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
	"sigs.k8s.io/gateway-api/pkg/features"
)

//go:embed manifests
var manifests embed.FS

// again are tests of upstream's whose checks hold for any protocol: they run with each HTTP listener of their manifests
// made a TLS listener in mode Passthrough. Not among them: ListenerSetReferenceGrant, which is about certificates of
// HTTPS listeners.
var again = []suite.ConformanceTest{
	tests.GatewayOptionalAddressValue,
	tests.ListenerSetAllowedNamespaceNone,
	tests.ListenerSetAllowedNamespaceSame,
	tests.ListenerSetAllowedNamespaceSelector,
	tests.ListenerSetAllowedRoutesSupportedKinds,
	tests.ListenerSetDefaultNotAllowed,
	tests.ListenerSetHostnameConflict,
	tests.ListenerSetProtocolConflict,
}

// anew are tests of our own, after upstream's of the same subject, whose checks need HTTPRoutes.
var anew = []suite.ConformanceTest{
	staticAddresses,
	listenerSetAllowedRoutes,
	listenerSetParents,
}

// TestOwn runs tests of extended features with listeners that Vestibule has. What passes here is no conformance: it
// stands in no report and in no supportedFeatures.
func TestOwn(t *testing.T) {
	options := optionsFor(t)
	options.ReportOutputPath = ""
	options.SupportedFeatures = []features.FeatureName{
		features.SupportGateway,
		features.SupportGatewayAddressEmpty,
		features.SupportGatewayStaticAddresses,
		features.SupportListenerSet,
		features.SupportReferenceGrant,
		features.SupportTLSRoute,
	}
	options.UsableNetworkAddresses = addresses("198.51.100.200")
	// A node's: never one of a Gateway.
	options.UnusableNetworkAddresses = addresses("10.77.0.11")

	rewritten := fstest.MapFS{}
	var chosen []suite.ConformanceTest
	for _, test := range again {
		for at, manifest := range test.Manifests {
			text, err := conformance.Manifests.ReadFile(manifest)
			if err != nil {
				t.Fatal(err)
			}
			ours := path.Join("vestibule", path.Base(manifest))
			rewritten[ours] = &fstest.MapFile{Data: http.ReplaceAll(text, []byte(passthrough))}
			test.Manifests = append([]string{}, test.Manifests...)
			test.Manifests[at] = ours
		}
		chosen = append(chosen, test)
	}
	options.ManifestFS = append(options.ManifestFS, rewritten, manifests)

	own, err := suite.NewConformanceTestSuite(options)
	if err != nil {
		t.Fatal(err)
	}
	chosen = append(chosen, anew...)
	own.Setup(t, chosen)
	if err := own.Run(t, chosen); err != nil {
		t.Fatal(err)
	}
}

// http is the protocol of a listener, passthrough what stands there instead.
var http = regexp.MustCompile(`(?m)^( *)protocol: HTTP$`)

const passthrough = "${1}protocol: TLS\n${1}tls: {mode: Passthrough}"

func addresses(values ...string) (all []v1.GatewaySpecAddress) {
	kind := v1.IPAddressType
	for _, value := range values {
		all = append(all, v1.GatewaySpecAddress{Type: &kind, Value: value})
	}
	return all
}
