package main

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"path/filepath"
	"time"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
	"github.com/pkg/errors"
)

// writeSBOMs writes a CycloneDX bill of materials for each binary from its build info, which lists exactly the modules whose packages
// are linked.
func (r *release) writeSBOMs() error {
	return eachBinary(func(p program, architecture string) error {
		return r.writeSBOM(filepath.Join(r.out, p.binary(architecture)), p.binary(architecture))
	})
}

// writeSBOM writes the bill of materials of one binary.
func (r *release) writeSBOM(binary, name string) error {
	bom, err := r.bom(binary)
	if err != nil {
		return err
	}
	var content bytes.Buffer
	if err := cyclonedx.NewBOMEncoder(&content, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		return errors.Wrap(err, "encoding the bill of materials")
	}
	return r.write(name+".cdx.json", content.Bytes())
}

func (r *release) bom(binary string) (*cyclonedx.BOM, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, errors.Wrap(err, "reading the build info")
	}
	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{
		Timestamp: r.created.Format(time.RFC3339),
		Component: component(cyclonedx.ComponentTypeApplication, info.Path, r.version),
	}
	components := []cyclonedx.Component{*component(cyclonedx.ComponentTypeLibrary, "std", info.GoVersion)}
	requires := []string{components[0].BOMRef}
	for _, module := range info.Deps {
		if module.Replace != nil {
			return nil, errors.Errorf("module %s is replaced; a release has no replacements", module.Path)
		}
		if r.licenses[module.Path] == "" {
			return nil, errors.Errorf("the license of %s is not known", module.Path)
		}
		c := component(cyclonedx.ComponentTypeLibrary, module.Path, module.Version)
		c.Licenses = &cyclonedx.Licenses{{Expression: r.licenses[module.Path]}}
		c.Properties = &[]cyclonedx.Property{{Name: "go:sum", Value: module.Sum}}
		components, requires = append(components, *c), append(requires, c.BOMRef)
	}
	bom.Components = &components
	bom.Dependencies = &[]cyclonedx.Dependency{{Ref: bom.Metadata.Component.BOMRef, Dependencies: &requires}}
	return bom, nil
}

func component(kind cyclonedx.ComponentType, module, version string) *cyclonedx.Component {
	purl := fmt.Sprintf("pkg:golang/%s@%s", module, version)
	return &cyclonedx.Component{Type: kind, BOMRef: purl, Name: module, Version: version, PackageURL: purl}
}
