package surge

import (
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

const anotherActor = "Another actor"

// ownerOf names the field manager that owns a field of an object's spec. If several do, it is the one that has written last. An owner of a
// field that a surge has changed is not this manager: the API server removes it as owner when the value changes. It is anotherActor if no
// owner is recorded.
func ownerOf(object metav1.Object, field string) string {
	var owner string
	var latest time.Time
	for _, entry := range object.GetManagedFields() {
		if at := ptr.Deref(entry.Time, metav1.Time{}).Time; owns(entry, field) && (owner == "" || at.After(latest)) {
			owner, latest = entry.Manager, at
		}
	}
	if owner == "" {
		return anotherActor
	}
	return fmt.Sprintf("Field manager %q", owner)
}

func owns(entry metav1.ManagedFieldsEntry, field string) bool {
	if entry.Manager == "" || entry.FieldsV1 == nil {
		return false
	}
	var fields struct {
		Spec map[string]json.RawMessage `json:"f:spec"`
	}
	err := json.Unmarshal([]byte(entry.FieldsV1.GetRawString()), &fields)
	_, owned := fields.Spec["f:"+field]
	return err == nil && owned
}
