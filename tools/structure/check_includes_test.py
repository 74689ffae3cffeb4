"""The check of includes finds edges and cycles that are planted in a small tree."""
import os
import tempfile
import unittest

import check_includes

TABLE = """
base:
ops: base
server: ops base
server/local_workers.cc: worker
ops_test: server
worker: ops
"""


class CheckIncludesTest(unittest.TestCase):
    def check(self, **files):
        """Complaints about a tree of files; __ stands for / and _dot_ for the dot in their names."""
        with tempfile.TemporaryDirectory() as root:
            names = {"tools/structure/components.txt": TABLE, "base/a.h": "", "ops/a.h": "", "server/a.h": "", "worker/a.h": ""}
            names.update({k.replace("__", "/").replace("_dot_", "."): v for k, v in files.items()})
            for name, text in names.items():
                path = os.path.join(root, name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
            return check_includes.check(root)

    def test_allowed_edges_pass(self):
        self.assertEqual(self.check(ops__b_dot_cc='#include "base/a.h"\n#include "absl/x.h"\n'), [])

    def test_new_edge_is_named_with_file_and_line(self):
        complaints = self.check(base__b_dot_cc='\n#include "ops/a.h"\n')
        self.assertEqual(len(complaints), 1)
        self.assertIn("base/b.cc:2: base may not include ops/a.h", complaints[0])

    def test_line_of_a_file_holds_for_that_file_alone(self):
        include = '#include "worker/a.h"\n'
        self.assertEqual(self.check(server__local_workers_dot_cc=include), [])
        self.assertEqual(len(self.check(server__main_dot_cc=include)), 1)

    def test_line_of_tests_holds_for_tests_alone(self):
        include = '#include "server/a.h"\n'
        self.assertEqual(self.check(ops__b_test_dot_cc=include), [])
        self.assertEqual(len(self.check(ops__b_dot_cc=include)), 1)

    def test_component_without_a_line_may_include_nothing(self):
        self.assertEqual(len(self.check(new__b_dot_cc='#include "base/a.h"\n')), 1)

    def test_folders_that_include_each_other_are_named(self):
        complaints = self.check(ops__x__a_dot_h='#include "ops/y/a.h"\n', ops__y__a_dot_h='#include "ops/x/a.h"\n')
        self.assertEqual(len(complaints), 1)
        self.assertIn("folders include each other: ops/x, ops/y", complaints[0])
        self.assertIn("ops/x/a.h:1: ops/x -> ops/y", complaints[0])


if __name__ == "__main__":
    unittest.main()
