// Command indexed writes a copy of FerretDB's source that answers questions by its indexes, and a go.mod that uses it.
//
// FerretDB 1.24 makes indexes in SQLite and uses none: it asks SQLite only for a key that stands alone, with an expression that is not
// that of the index, and for everything else reads the whole collection. So every call costs as much as the collection is long. Each
// change is an exact piece of its source and what takes its place; a piece that is not there any more ends the build.
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const module = "github.com/FerretDB/FerretDB"

type change struct{ file, old, new string }

var changes = []change{
	{
		// As its index over keys is written; written otherwise, it is not used.
		"internal/backends/sqlite/metadata/metadata.go",
		"\tIDColumn = DefaultColumn + \"->'$._id'\"\n",
		"\tIDColumn = DefaultColumn + \"->\\\"_id\\\"\"\n",
	},
	{
		"internal/backends/sqlite/collection.go",
		"\tq += whereClause\n\tq += prepareOrderByClause(params.Sort)\n",
		"\twhereClause, args = where(params.Filter)\n\tq += whereClause\n\tq += prepareOrderByClause(params.Sort)\n",
	},
	{
		// The text of a value, not its JSON: only the text sorts as the value does.
		"internal/backends/sqlite/metadata/registry.go",
		"\t\t\tcolumns[i] = fmt.Sprintf(\"%s->%s\", DefaultColumn, strings.Join(fields, \"->\"))\n",
		"\t\t\tcolumns[i] = fmt.Sprintf(\"%s->%s\", DefaultColumn, strings.Join(fields, \"->\"))\n" +
			"\t\t\tif len(fields) == 1 && key.Field != \"_id\" {\n" +
			"\t\t\t\tcolumns[i] = DefaultColumn + \"->>'\" + strings.ReplaceAll(key.Field, \"'\", \"''\") + \"'\"\n" +
			"\t\t\t}\n",
	},
}

// added are whole files, by where they belong in FerretDB.
var added = map[string]string{"internal/backends/sqlite/where.go": "_added/where.go"}

func main() {
	log.SetFlags(0)
	log.SetPrefix("ferretdb: ")
	if len(os.Args) != 2 {
		log.Fatal("name the folder to write to")
	}
	if err := write(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func write(folder string) error {
	copied, err := filepath.Abs(filepath.Join(folder, "source"))
	if err != nil {
		return err
	}
	if err := copySource(copied); err != nil { // makes the folder, too
		return err
	}
	for _, each := range changes {
		if err := apply(copied, each); err != nil {
			return err
		}
	}
	for file, ours := range added {
		if err := copyFile(ours, filepath.Join(copied, file)); err != nil {
			return err
		}
	}
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		return err
	}
	mod = fmt.Appendf(mod, "\nreplace %s => %s\n", module, copied)
	if err := os.WriteFile(filepath.Join(folder, "go.mod"), mod, 0o644); err != nil {
		return err
	}
	return copyFile("go.sum", filepath.Join(folder, "go.sum"))
}

func copySource(to string) error {
	// Fetches it where it is not in the module cache yet.
	if said, err := exec.Command("go", "mod", "download", module).CombinedOutput(); err != nil {
		return fmt.Errorf("go mod download: %w: %s", err, said)
	}
	said, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return fmt.Errorf("go list: %w", err)
	}
	from := strings.TrimSpace(string(said))
	if from == "" {
		return errors.New("go list names no folder for " + module)
	}
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		inside, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return os.MkdirAll(filepath.Join(to, inside), 0o755)
		}
		return copyFile(path, filepath.Join(to, inside))
	})
}

func apply(root string, wanted change) error {
	path := filepath.Join(root, wanted.file)
	source, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if strings.Count(string(source), wanted.old) != 1 {
		return fmt.Errorf("%s of this FerretDB does not have this piece once:\n%s", wanted.file, wanted.old)
	}
	return os.WriteFile(path, []byte(strings.Replace(string(source), wanted.old, wanted.new, 1)), 0o644)
}

func copyFile(from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o644)
}
