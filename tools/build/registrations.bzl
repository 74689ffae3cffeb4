"""registrations: the list of what the files of a folder register, made from the files."""

def registrations(name, srcs, macro, suffix = ""):
    """Writes <name> with one line `macro(Foo)` for each definition of `void RegisterFoo<suffix>(` in srcs.

    A new operator or kernel is a new file: nothing else names it.
    """
    native.genrule(
        name = name.replace(".", "_"),
        srcs = srcs,
        outs = [name],
        cmd = "LC_ALL=C sed -nE 's/^void Register([A-Za-z0-9]+)%s\\(.*/%s(\\1)/p' $(SRCS) | LC_ALL=C sort > $@" %
              (suffix, macro),
        message = "Listing what is registered in",
    )
