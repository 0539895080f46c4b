package plan

// Component returns the maintenances that touch the named one through the Nodes that they share, directly or through others,
// and the named one itself, in the order given. All of them are needed to decide about any of them; nothing else is.
func Component(of string, maintenances []Maintenance) []Maintenance {
	byNode := map[string][]int{}
	for i, m := range maintenances {
		for _, node := range m.Nodes {
			byNode[node] = append(byNode[node], i)
		}
	}
	touched := make([]bool, len(maintenances))
	var queue []int
	touch := func(i int) {
		if !touched[i] {
			touched[i] = true
			queue = append(queue, i)
		}
	}
	for i, m := range maintenances {
		if m.Name == of {
			touch(i)
		}
	}
	for ; len(queue) > 0; queue = queue[1:] {
		for _, node := range maintenances[queue[0]].Nodes {
			for _, neighbor := range byNode[node] {
				touch(neighbor)
			}
			delete(byNode, node) // all of it is touched now
		}
	}
	var component []Maintenance
	for i, m := range maintenances {
		if touched[i] {
			component = append(component, m)
		}
	}
	return component
}
