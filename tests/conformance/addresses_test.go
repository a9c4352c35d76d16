package conformance

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	v1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/gateway-api/conformance/utils/kubernetes"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
)

// staticAddresses: a Gateway asks for an address of an unknown type, one that is a node's, and a good one; one after the
// other the bad ones are taken out.
var staticAddresses = suite.ConformanceTest{
	ShortName:   "OwnStaticAddresses",
	Description: "Addresses in a Gateway's spec with a TLS listener",
	Manifests:   []string{"manifests/static-addresses.yaml"},
	Test: func(t *testing.T, s *suite.ConformanceTestSuite) {
		name := types.NamespacedName{Namespace: suite.InfrastructureNamespace, Name: "own-static-addresses"}
		must := func(kind v1.GatewayConditionType, status metav1.ConditionStatus, reason v1.GatewayConditionReason) {
			t.Helper()
			// A look at stale conditions would be the last one.
			kubernetes.GatewayMustHaveLatestConditions(t, s.Client, s.TimeoutConfig, name)
			kubernetes.GatewayMustHaveCondition(t, s.Client, s.TimeoutConfig, name,
				metav1.Condition{Type: string(kind), Status: status, Reason: string(reason)})
		}
		// takeFirst removes the first address and tells the Gateway as it was.
		takeFirst := func() v1.Gateway {
			t.Helper()
			var gateway v1.Gateway
			if err := s.Client.Get(t.Context(), name, &gateway); err != nil {
				t.Fatal(err)
			}
			before := gateway.DeepCopy()
			gateway.Spec.Addresses = gateway.Spec.Addresses[1:]
			if err := s.Client.Patch(t.Context(), &gateway, client.MergeFrom(before)); err != nil {
				t.Fatal(err)
			}
			return *before
		}

		must(v1.GatewayConditionAccepted, metav1.ConditionFalse, v1.GatewayReasonUnsupportedAddress)
		if asked := takeFirst().Spec.Addresses; len(asked) != 3 {
			t.Fatalf("three addresses are asked for, not %v", asked)
		}
		must(v1.GatewayConditionAccepted, metav1.ConditionTrue, v1.GatewayReasonAccepted)
		must(v1.GatewayConditionProgrammed, metav1.ConditionFalse, v1.GatewayReasonAddressNotUsable)
		good := takeFirst().Spec.Addresses[1]
		must(v1.GatewayConditionAccepted, metav1.ConditionTrue, v1.GatewayReasonAccepted)
		must(v1.GatewayConditionProgrammed, metav1.ConditionTrue, v1.GatewayReasonProgrammed)

		var gateway v1.Gateway
		if err := s.Client.Get(t.Context(), name, &gateway); err != nil {
			t.Fatal(err)
		}
		given := gateway.Status.Addresses
		if len(given) != 1 || given[0].Value != good.Value || given[0].Type == nil || *given[0].Type != *good.Type {
			t.Fatalf("status has %v, not %v alone", given, good)
		}
	},
}
