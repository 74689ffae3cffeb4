"""The check of local names finds functions that would become overloads of each other, and nothing else."""
import os
import tempfile
import unittest

import check_local_names


def local(*declarations):
    return "namespace espalier {\nnamespace {\n" + "\n".join(declarations) + "\n}  // namespace\n}\n"


class CheckLocalNamesTest(unittest.TestCase):
    def check(self, **files):
        """Complaints about a tree of files; __ stands for / in their names, which get the ending .cc."""
        with tempfile.TemporaryDirectory() as root:
            for name, text in files.items():
                path = os.path.join(root, name.replace("__", "/") + ".cc")
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
            return check_local_names.check(root)

    def test_functions_of_one_name_are_named_with_their_files(self):
        complaints = self.check(server__a=local("int Size(int x) { return x; }"),
                                server__b=local("template <typename T>\nstd::vector<int> Size(const T& x, long y = 2) {", "}"))
        self.assertEqual(len(complaints), 1)
        self.assertIn("Size is a local function of server/a.cc and server/b.cc", complaints[0])

    def test_declarations_count(self):
        self.assertEqual(len(self.check(server__a=local("int Size(int);"), server__b=local("int Size(int x) { return x; }"))), 1)

    def test_functions_of_different_folders_or_tests_are_apart(self):
        size = local("int Size(int x) { return x; }")
        self.assertEqual(self.check(server__a=size, client__a=size, server__a_test=size), [])

    def test_members_calls_types_and_texts_are_no_functions(self):
        one = local("struct A {", "  int Size(int x) { return Other(x); }", "};", "const int kSize = Size(3);",
                    'const char kText[] = "int Size(int x) { }";', "// int Size(int x);", "using Size = int(int);")
        two = local("class B : public Base {", "  int Size(int x);", "};", "int Other(int x) { return Size(x); }")
        self.assertEqual(self.check(server__a=one, server__b=two), [])


if __name__ == "__main__":
    unittest.main()
