package conformance

import (
	"crypto/tls"
	"net"
	"slices"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/gateway-api/conformance/utils/kubernetes"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
)

const infra = suite.InfrastructureNamespace

// listenerSetAllowedRoutes: allowedRoutes of a ListenerSet's listeners, in status and in traffic.
var listenerSetAllowedRoutes = suite.ConformanceTest{
	ShortName:   "OwnListenerSetAllowedRoutes",
	Description: "TLSRoutes attach to listeners of a ListenerSet that allow their namespace",
	Manifests:   []string{"manifests/listenerset-allowed-routes.yaml"},
	Test: func(t *testing.T, s *suite.ConformanceTestSuite) {
		gateway := types.NamespacedName{Namespace: infra, Name: "own-allowed-routes"}
		set := gateway
		elsewhere := types.NamespacedName{Namespace: "own-routes-selected", Name: "own-elsewhere"}
		kubernetes.GatewayMustHaveAttachedListeners(t, s.Client, s.TimeoutConfig, gateway, 2)
		kubernetes.ListenerSetStatusMustHaveListeners(t, s.Client, s.TimeoutConfig, set, []v1.ListenerEntryStatus{
			listener("all", 3), listener("same", 1), listener("selected", 1),
		})
		kubernetes.ListenerSetStatusMustHaveListeners(t, s.Client, s.TimeoutConfig, elsewhere,
			[]v1.ListenerEntryStatus{listener("same", 1)})
		// No listener of that ListenerSet allows it.
		kubernetes.TLSRouteMustHaveCondition(t, s.Client, s.TimeoutConfig,
			types.NamespacedName{Namespace: infra, Name: "own-stranger"}, elsewhere, metav1.Condition{
				Type:   string(v1.RouteConditionAccepted),
				Status: metav1.ConditionFalse,
				Reason: string(v1.RouteReasonNotAllowedByListeners),
			})

		address := addressOf(t, s, gateway)
		for name, backend := range map[string]string{
			"here.all.example":           tcpBackend,
			"here.same.example":          tcpBackend,
			"here.selected.example":      nobody,
			"selected.all.example":       tlsBackend,
			"selected.same.example":      nobody,
			"selected.selected.example":  tlsBackend,
			"other.all.example":          tcpBackend,
			"other.same.example":         nobody,
			"other.selected.example":     nobody,
			"selected.elsewhere.example": tlsBackend,
			"here.elsewhere.example":     nobody,
		} {
			t.Run(name, func(t *testing.T) { mustReach(t, s, address, name, backend) })
		}
	},
}

// listenerSetParents: parentRefs to a Gateway and to a ListenerSet are judged and served each for itself.
var listenerSetParents = suite.ConformanceTest{
	ShortName:   "OwnListenerSetParents",
	Description: "TLSRoutes with a Gateway, a ListenerSet or both as parents",
	Manifests:   []string{"manifests/listenerset-parents.yaml"},
	Test: func(t *testing.T, s *suite.ConformanceTestSuite) {
		gateway := v1.ParentReference{Kind: kind("Gateway"), Name: "own-parents"}
		set := v1.ParentReference{Kind: kind("ListenerSet"), Name: "own-parents"}
		section := v1.SectionName("of-set")
		sectionOfGateway, sectionOfSet := gateway, set
		sectionOfGateway.SectionName, sectionOfSet.SectionName = &section, &section
		accepted := metav1.Condition{Type: string(v1.RouteConditionAccepted), Status: metav1.ConditionTrue}
		unmatched := metav1.Condition{
			Type:   string(v1.RouteConditionAccepted),
			Status: metav1.ConditionFalse,
			Reason: string(v1.RouteReasonNoMatchingParent),
		}
		for route, parents := range map[string][]v1.RouteParentStatus{
			"own-both":         {parent(s, gateway, accepted), parent(s, set, accepted)},
			"own-one":          {parent(s, sectionOfGateway, unmatched), parent(s, sectionOfSet, accepted)},
			"own-gateway-only": {parent(s, gateway, accepted)},
		} {
			name := types.NamespacedName{Namespace: infra, Name: route}
			kubernetes.TLSRouteMustHaveParents(t, s.Client, s.TimeoutConfig, name, parents, false)
		}
		name := types.NamespacedName{Namespace: infra, Name: "own-parents"}
		kubernetes.ListenerSetStatusMustHaveListeners(t, s.Client, s.TimeoutConfig, name,
			[]v1.ListenerEntryStatus{listener("of-set", 2)})

		address := addressOf(t, s, name)
		for name, backend := range map[string]string{
			"both.gateway.example": tcpBackend,
			"both.set.example":     tcpBackend,
			"one.gateway.example":  nobody,
			"one.set.example":      tlsBackend,
			"only.gateway.example": tlsBackend,
			"only.set.example":     nobody,
		} {
			t.Run(name, func(t *testing.T) { mustReach(t, s, address, name, backend) })
		}
	},
}

// listener is an accepted, programmed TLS listener with so many routes.
func listener(name v1.SectionName, routes int32) v1.ListenerEntryStatus {
	group := v1.Group(v1.GroupName)
	status := v1.ListenerEntryStatus{
		Name:           name,
		SupportedKinds: []v1.RouteGroupKind{{Group: &group, Kind: "TLSRoute"}},
		AttachedRoutes: routes,
	}
	for _, condition := range []v1.ListenerConditionType{
		v1.ListenerConditionAccepted, v1.ListenerConditionProgrammed, v1.ListenerConditionResolvedRefs,
	} {
		status.Conditions = append(status.Conditions, metav1.Condition{Type: string(condition), Status: metav1.ConditionTrue})
	}
	return status
}

func kind(name v1.Kind) *v1.Kind { return &name }

func parent(s *suite.ConformanceTestSuite, ref v1.ParentReference, condition metav1.Condition) v1.RouteParentStatus {
	group := v1.Group(v1.GroupName)
	ref.Group = &group
	return v1.RouteParentStatus{
		ParentRef:      ref,
		ControllerName: v1.GatewayController(s.ControllerName),
		Conditions:     []metav1.Condition{condition},
	}
}

// addressOf waits for a Gateway's address.
func addressOf(t *testing.T, s *suite.ConformanceTestSuite, gateway types.NamespacedName) string {
	t.Helper()
	address, err := kubernetes.WaitForGatewayAddress(t, s.Client, s.TimeoutConfig, kubernetes.NewGatewayRef(gateway))
	if err != nil {
		t.Fatal(err)
	}
	// With its port, or without where listeners have several.
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host
	}
	return net.JoinHostPort(address, strconv.Itoa(443))
}

// The suite's backends with TLS, known by the last name in their certificates.
const (
	tcpBackend = "abc.example.com"
	tlsBackend = "other.example.com"
	// nobody answers a name that leads nowhere: the connection is refused.
	nobody = ""
)

// mustReach says hello by name until the wanted backend shows its certificate. It need not be good for that name: the
// point of passthrough is that the backend, and nobody before it, answers.
func mustReach(t *testing.T, s *suite.ConformanceTestSuite, address, name, backend string) {
	t.Helper()
	var seen string
	for end := time.Now().Add(s.TimeoutConfig.MaxTimeToConsistency); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		seen = shown(address, name)
		if seen == backend {
			return
		}
	}
	t.Fatalf("%s at %s: the certificate shown is %q, not %q", name, address, seen, backend)
}

// shown is the last name in the certificate that the backend shows; nothing when the connection is refused or reset.
func shown(address, name string) string {
	dialer := net.Dialer{Timeout: 5 * time.Second}
	config := tls.Config{ServerName: name, InsecureSkipVerify: true} //nolint:gosec // see mustReach
	connection, err := tls.DialWithDialer(&dialer, "tcp", address, &config)
	if err != nil {
		return nobody
	}
	defer connection.Close()
	names := connection.ConnectionState().PeerCertificates[0].DNSNames
	return slices.Concat([]string{nobody}, names)[len(names)]
}
