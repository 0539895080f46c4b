package workload

// Reasons of the events that this package writes on Clusters.
const (
	// eventAdmissionPoliciesMissing means that the workload cluster does not support some of the admission policies, or has disabled them.
	eventAdmissionPoliciesMissing = "AdmissionPoliciesMissing"
)
