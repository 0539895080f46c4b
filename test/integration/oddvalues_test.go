package integration

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/utils/ptr"
)

var oddTimes = []string{
	"2026-01-01T00:00:00z", "2026-01-01t00:00:00Z", "2026-01-01t00:00:00z", "2026-01-01 00:00:00Z", "2026-01-01T00:00:00", "2026-01-01", "", "1735689600",
	"2026-01-01T00:00:00+99:99", "2026-01-01T00:00:00+24:00", "2026-01-01T00:00:00-24:60", "2026-01-01T00:00:00+23:59", "2026-01-01T00:00:00-00:00",
	"2026-01-01T00:00:00+0000", "2026-01-01T00:00:00Ztail", "2026-01-01T00:00:00ZT", "2026-01-01T00:00:00+00:00t", "2026-01-01T00:00:00Z ",
	" 2026-01-01T00:00:00Z",
	"2026-01-01T00:00:00.5Z", "2026-01-01T00:00:00,5Z", "2026-01-01T00:00:00:5Z", "2026-01-01T00:00:00x5Z", "2026-01-01T00:00:0005Z", "2026-01-01T00:00:00.Z",
	"2026-01-01T00:00:00.1234567890Z", "2026-01-01T00:00:00." + strings.Repeat("9", 400) + "Z", "2026-01-01T00:00:00" + strings.Repeat("9", 10) + "Z",
	"2026-01-01T23:59:60Z", "2026-12-31T23:59:59Z", "2026-01-01T24:00:00Z", "2026-01-01T00:60:00Z", "2026-02-29T00:00:00Z", "2026-02-30T00:00:00Z",
	"2026-1-1T00:00:00Z", "2026-01-01T0:00:00Z", "12026-01-01T00:00:00Z", "0000-01-01T00:00:00Z", "0000-01-01T00:00:00+23:59", "0001-01-01T00:00:00Z",
	"0001-01-01T00:00:00.9Z", "1969-12-31T23:59:59Z", "1970-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59-23:59", "9998-12-31T23:59:59-24:00",
	"\uff12026-01-01T00:00:00Z", "2026-01-01T00:00:00\u017d",
}

var oddNumbers = []string{
	"-1", "0", "1", "1.0", "1e0", "1E+2", "1000.0", "1000.0000001", "1000.0000000001", "999.9999999999", "1000000000.1", "2147483646.9", "9007199254740990.5",
	"0.1", "1e-400", "2147483647", "2147483648", "-2147483648", "-2147483649", "2147483647.0", "2147483648.0", "4294967296", "9007199254740991",
	"9007199254740993", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "18446744073709551616", "9.3e18", "1e30",
	"1e308",
}

var oddOthers = []string{`null`, `true`, `""`, `"1"`, `5`, `[]`, `{}`, `[null]`, `["2026-01-01T00:00:00Z"]`, `{"a":null}`, `"\ud800"`, `"\u0000"`}

var oddDurations = []string{`"5%"`, `"1h"`, `"0x5"`, `"1e9"`, `"99999999999%"`, `"10.5%"`, `"100%"`, `"１%"`, `"1%\n"`}

// oddValues returns JSON texts for a field: those at the limits of its schema, and those that an API server might let through.
func oddValues(f field) []string {
	odd := slices.Clone(oddOthers)
	switch {
	case f.schema.XIntOrString:
		odd = append(append(odd, oddNumbers...), oddDurations...)
	case f.schema.Type == "integer" || f.schema.Type == "number":
		odd = append(odd, oddNumbers...)
	case f.schema.Format == "date-time":
		for _, each := range oddTimes {
			odd = append(odd, asJSON(each))
		}
	case f.schema.Type == "string":
		length := int(ptr.Deref(f.schema.MaxLength, 1<<10))
		text, _ := f.value.(string)
		odd = append(odd, asJSON(strings.Repeat("a", length)), asJSON(strings.Repeat("a", length+1)), asJSON(strings.Repeat("\U0001f600", length)),
			asJSON(strings.ToUpper(text)), asJSON(strings.ToLower(text)), asJSON(text+"\n"))
	case f.schema.Type == "array":
		elements, _ := f.value.([]any)
		for _, n := range []int{0, int(ptr.Deref(f.schema.MaxItems, 1<<10)), int(ptr.Deref(f.schema.MaxItems, 1<<10)) + 1} {
			odd = append(odd, asJSON(slices.Repeat(elements[:1], n)))
		}
	case f.schema.AdditionalProperties != nil:
		many := map[string]string{}
		for i := range 1 << 10 {
			many[fmt.Sprint(i)] = strings.Repeat("a", 1<<6)
		}
		odd = append(odd, asJSON(many), `{"":""}`, `{"a":1}`, `{"a":{}}`, `{"a":"b","a":"c"}`)
	}
	return odd
}

func asJSON(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err) // values of this file
	}
	return string(text)
}
