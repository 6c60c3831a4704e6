// Renders the templates of a Helm chart with what Helm renders them with: Go's text/template and
// sprig. It exists as Debian has no Helm. Input and output are JSON: see test_helm.py.
package main

import (
	"encoding/json"
	"log"
	"os"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
)

type input struct {
	Templates map[string]string // by file
	Values    map[string]any    // numbers are float64, as Helm has them
	Release   map[string]any
	Chart     map[string]any
}

func main() {
	var given input
	if err := json.NewDecoder(os.Stdin).Decode(&given); err != nil {
		log.Fatal(err)
	}
	functions := sprig.TxtFuncMap()
	delete(functions, "env")
	delete(functions, "expandenv")
	all := template.New("chart").Option("missingkey=zero")
	functions["include"] = func(name string, data any) (string, error) {
		var text strings.Builder
		err := all.ExecuteTemplate(&text, name, data)
		return text.String(), err
	}
	all.Funcs(functions)
	for name, text := range given.Templates {
		template.Must(all.New(name).Parse(text))
	}
	rendered := map[string]string{}
	data := map[string]any{"Values": given.Values, "Release": given.Release, "Chart": given.Chart}
	for name := range given.Templates {
		var text strings.Builder
		if err := all.ExecuteTemplate(&text, name, data); err != nil {
			log.Fatal(err)
		}
		rendered[name] = strings.ReplaceAll(text.String(), "<no value>", "")
	}
	if err := json.NewEncoder(os.Stdout).Encode(rendered); err != nil {
		log.Fatal(err)
	}
}
