package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/pkg/errors"
)

// eachFile parses the Go files below a directory, except tests.
func eachFile(root string, visit func(path string, file *ast.File)) error {
	files := token.NewFileSet()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(files, path, nil, parser.ParseComments)
		if err == nil {
			visit(path, file)
		}
		return err
	})
	return errors.Wrapf(err, "reading %s", root)
}

// metrics are the calls of prometheus.New…(prometheus.…Opts{Name: …, Help: …}, labels).
func metrics() ([][]string, error) {
	var rows [][]string
	err := eachFile("controllers", func(_ string, file *ast.File) {
		ast.Inspect(file, func(node ast.Node) bool {
			call, ok := node.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			function, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !strings.HasPrefix(function.Sel.Name, "New") {
				return true
			}
			name, help := options(call.Args[0])
			if !strings.HasPrefix(name, "capnm_") {
				return true
			}
			kind := strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(function.Sel.Name, "New"), "Vec"))
			var labels []string
			if len(call.Args) > 1 {
				labels = literals(call.Args[1])
			}
			rows = append(rows, []string{code(name), kind, strings.Join(labels, ", "), help})
			return true
		})
	})
	slices.SortFunc(rows, slices.Compare)
	return rows, err
}

func options(expression ast.Expr) (name, help string) {
	literal, ok := expression.(*ast.CompositeLit)
	if !ok {
		return "", ""
	}
	for _, element := range literal.Elts {
		pair, ok := element.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		key, _ := pair.Key.(*ast.Ident)
		text := strings.Join(literals(pair.Value), "")
		switch {
		case key == nil:
		case key.Name == "Name":
			name = text
		case key.Name == "Help":
			help = text
		}
	}
	return name, help
}

func literals(expression ast.Expr) []string {
	var texts []string
	ast.Inspect(expression, func(node ast.Node) bool {
		if literal, ok := node.(*ast.BasicLit); ok && literal.Kind == token.STRING {
			if text, err := strconv.Unquote(literal.Value); err == nil {
				texts = append(texts, text)
			}
		}
		return true
	})
	return texts
}

// eventComment is the comment of a constant that is the reason of an event.
var eventComment = regexp.MustCompile(`^[eE]vent\w+ on an? (\w+) means that (.+)`)

// events returns the constants with an eventComment.
func events() ([][]string, error) {
	var rows [][]string
	add := func(_ string, file *ast.File) {
		for _, block := range constants(file) {
			for _, c := range block.constants {
				if on := eventComment.FindStringSubmatch(oneLine(c.comment)); on != nil {
					rows = append(rows, []string{code(c.value), on[1], capitalized(on[2])})
				}
			}
		}
	}
	for _, root := range []string{"controllers", "drain", "exp"} {
		if err := eachFile(root, add); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(rows, slices.Compare)
	return slices.CompactFunc(rows, slices.Equal), nil
}

// conditionsOf is how the comment of a block of condition types or reasons begins.
var conditionsOf = regexp.MustCompile(`^(?:Condition types|Reasons of the condition \w+) of (\w+)s\b`)

// alsoOf is the end of the comment of a reason that objects of another kind have, too.
var alsoOf = regexp.MustCompile(` It is also a reason of (\w+)s\.$`)

// conditions returns the constants that name condition types and reasons, each once for a kind.
func conditions() ([][]string, error) {
	var rows [][]string
	known := map[string]bool{}
	add := func(_ string, file *ast.File) {
		for _, block := range constants(file) {
			of := conditionsOf.FindStringSubmatch(block.comment)
			if of == nil {
				continue
			}
			for _, c := range block.constants {
				is, kind, text := "type", singular(of[1]), sentence(c)
				if strings.HasPrefix(c.name, "Reason") || strings.HasPrefix(block.comment, "Reasons") {
					is = "reason"
				}
				if also := alsoOf.FindStringSubmatch(text); also != nil {
					kind, text = kind+", "+singular(also[1]), strings.TrimSuffix(text, also[0])
				}
				if id := is + c.value + kind; !known[id] {
					known[id] = true
					rows = append(rows, []string{code(c.value), is, kind, text})
				}
			}
		}
	}
	for _, root := range []string{"api", "drain"} {
		if err := eachFile(root, add); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(rows, func(a, b []string) int { return strings.Compare(a[2], b[2]) })
	return rows, nil
}

// singular returns the kind of a plural without its last s.
func singular(kind string) string {
	if stem, plural := strings.CutSuffix(kind, "ie"); plural {
		return stem + "y"
	}
	return kind
}

type constant struct{ name, value, comment string }

// block is a declaration of constants.
type block struct {
	comment   string
	constants []constant
}

// constants returns the string constants of a file, grouped by declaration block.
func constants(file *ast.File) []block {
	var blocks []block
	for _, declaration := range file.Decls {
		general, ok := declaration.(*ast.GenDecl)
		if !ok || general.Tok != token.CONST {
			continue
		}
		block := block{comment: general.Doc.Text()}
		for _, spec := range general.Specs {
			value, ok := spec.(*ast.ValueSpec)
			if !ok || len(value.Values) != 1 {
				continue
			}
			if texts := literals(value.Values[0]); len(texts) == 1 {
				block.constants = append(block.constants, constant{value.Names[0].Name, texts[0], value.Doc.Text() + value.Comment.Text()})
			}
		}
		if len(block.constants) == 1 && block.constants[0].comment == "" {
			block.constants[0].comment = block.comment
		}
		blocks = append(blocks, block)
	}
	return blocks
}

// sentence returns a comment without the name that it begins with.
func sentence(c constant) string {
	comment := oneLine(c.comment)
	for _, prefix := range []string{c.name + ": ", c.name + " means that ", c.name + " is ", c.name + " "} {
		comment = strings.TrimPrefix(comment, prefix)
	}
	return capitalized(comment)
}

func oneLine(comment string) string {
	return strings.TrimSpace(strings.ReplaceAll(comment, "\n", " "))
}

func capitalized(text string) string {
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:]
}
