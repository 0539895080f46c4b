package remote

// Reasons of the events that this package writes on Clusters.
const (
	// eventAdmissionPoliciesMissing: the workload cluster is too old for some of the admission policies, or has them switched off.
	eventAdmissionPoliciesMissing = "AdmissionPoliciesMissing"
)
