package main

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestConditions(t *testing.T) {
	g := NewWithT(t)
	t.Chdir("../../..")
	rows, err := conditions()
	g.Expect(err).NotTo(HaveOccurred())
	listed := map[string]string{}
	for _, row := range rows {
		g.Expect(row[3]).NotTo(BeEmpty(), row[0])
		listed[row[1]+" "+row[0]] = row[2]
	}
	for reason, kind := range map[string]string{
		"`BudgetExhausted`": "Evacuation", "`EvictionNotServed`": "Evacuation", "`MoreThanOneReplica`": "Evacuation", "`DrainEndsSoon`": "Evacuation",
		"`InvalidDrainRule`": "NodeMaintenance, Machine", "`CordonFailed`": "NodeMaintenance, Machine", "`NoMachines`": "MachineDrainPolicy",
	} {
		g.Expect(listed).To(HaveKeyWithValue("reason "+reason, kind))
	}
	g.Expect(listed).To(HaveKeyWithValue("type `MachinePoolsManaged`", "MachineDrainPolicy"))
}
