package history

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"
)

func TestParts(t *testing.T) {
	t.Run("follow each other", func(t *testing.T) {
		course := Course{
			Deleted: at(0), Limited: true, DrainStart: ptr.To(at(10)), DrainEnd: at(40), WaitsForVolumes: true, DaemonSets: at(50), Releasing: at(60),
			VolumesTimedOut: "volumes",
		}
		NewWithT(t).Expect(append(course.Before(at(50)), course.After(at(61))...)).To(Equal([]Part{
			{Key: turnPart, Start: at(0), End: at(10)},
			{Key: drainPart, Start: at(10), End: at(40)},
			{Key: volumesPart, Start: at(40), End: at(50), Error: "volumes"},
			{Key: daemonSetsPart, Start: at(50), End: at(60)},
			{Key: releasePart, Start: at(60), End: at(61)},
		}))
	})
	t.Run("begin with the deletion of a Machine whose Node was drained before", func(t *testing.T) {
		g, course := NewWithT(t), Course{Deleted: at(100), DrainStart: ptr.To(at(10)), DrainEnd: at(40), Releasing: at(101)}
		for _, part := range course.Before(at(101)) {
			g.Expect(part.Start).To(Equal(at(100)))
			g.Expect(part.End).To(Equal(at(100)))
		}
	})
	t.Run("are only the release if the Node is not drained", func(t *testing.T) {
		course := Course{Deleted: at(0), DrainEnd: at(1), Releasing: at(1)}
		NewWithT(t).Expect(append(course.Before(at(1)), course.After(at(2))...)).To(Equal([]Part{{Key: releasePart, Start: at(1), End: at(2)}}))
	})
}
