// Default sanitizer options. Compiled in rather than set in the environment, so that they also
// apply to daemons started by tests. The environment (ASAN_OPTIONS and so on) overrides them.
//
// The system's libraries are not instrumented: ThreadSanitizer does not see their synchronization
// and would report races inside gRPC.

#define ESPALIER_SANITIZER_HOOK extern "C" __attribute__((visibility("default"), used)) const char*

ESPALIER_SANITIZER_HOOK __asan_default_options() {
  return "detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1";
}

ESPALIER_SANITIZER_HOOK __ubsan_default_options() { return "print_stacktrace=1:halt_on_error=1"; }

ESPALIER_SANITIZER_HOOK __lsan_default_suppressions() {
  // c-ares leaks the name of a lookup that gRPC cancels.
  return "leak:libOpenCL.so\n"
         "leak:libcares.so\n"
         "leak:libgomp.so\n";
}

ESPALIER_SANITIZER_HOOK __tsan_default_options() {
  return "halt_on_error=1:second_deadlock_stack=1:ignore_noninstrumented_modules=1";
}

ESPALIER_SANITIZER_HOOK __tsan_default_suppressions() {
  return "called_from_lib:libgrpc.so\n"
         "called_from_lib:libgrpc++.so\n"
         "called_from_lib:libgpr.so\n"
         "called_from_lib:libprotobuf.so\n"
         "race:libgrpc\n"
         "race:libabsl\n"
         "mutex:libabsl\n"
         "deadlock:libgrpc\n";
}
