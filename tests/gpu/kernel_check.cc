// Compares the CUDA plug-in's kernels with the CPU's on a machine with a GPU. See tests/gpu/run.sh.
//
//   kernel_check --plugin=FILE [--only=TEXT] [--verbose] [--bench]
//
// The last line is "N passed, N failed", with ", N skipped" where there is no GPU.
#include <cstdio>
#include <cstring>
#include <string>

#include "ops/operators/register_all.h"
#include "tests/gpu/bench.h"
#include "tests/gpu/compare.h"
#include "tests/gpu/properties.h"

namespace espalier::gpu_check {
namespace {

struct Options {
  std::string plugin = "libespalier_cuda.so";
  std::string only;  // run only checks whose label contains it
  bool verbose = false;
  bool bench = false;
};

bool Parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg.rfind("--plugin=", 0) == 0) {
      options->plugin = arg.substr(9);
    } else if (arg.rfind("--only=", 0) == 0) {
      options->only = arg.substr(7);
    } else if (arg == "--verbose") {
      options->verbose = true;
    } else if (arg == "--bench") {
      options->bench = true;
    } else {
      std::fprintf(stderr,
                   "kernel_check: unknown option %s (known: --plugin=FILE, --only=TEXT, --verbose, "
                   "--bench)\n",
                   arg.c_str());
      return false;
    }
  }
  return true;
}

class Tally {
 public:
  explicit Tally(const Options& options) : options_(options) {}

  void Add(const Verdict& verdict) {
    if (!verdict.failure.empty()) {
      ++failed_;
      std::printf("FAILED  %-64s %s\n", verdict.label.c_str(), verdict.failure.c_str());
    } else {
      ++passed_;
      if (options_.verbose) {
        std::printf("passed  %-64s error %.3f of the tolerance\n", verdict.label.c_str(),
                    verdict.worst);
      }
    }
    std::fflush(stdout);
  }
  int Finish() const {
    std::printf("%d passed, %d failed\n", passed_, failed_);
    return failed_ == 0 ? 0 : 1;
  }

 private:
  const Options& options_;
  int passed_ = 0, failed_ = 0;
};

// Checks that every operator and gradient of the CPU has a CUDA kernel. Operators without a case
// here have theirs in tests/conformance/cases, which run.sh also runs on the GPU.
void CheckCoverage(const OpRegistry& ops, const Backend& cpu, const Backend& cuda, Tally* tally) {
  for (const OpDef* def : ops.All()) {
    std::string missing;
    for (const std::string& op : {def->name, def->name + "_grad"}) {
      if (cpu.kernels().Has(op) && !cuda.kernels().Has(op)) {
        missing += (missing.empty() ? "" : "; ") + op + " has no kernel on CUDA";
      }
    }
    tally->Add({"coverage of " + def->name, missing, 0});
  }
}

int Main(int argc, char** argv) {
  Options options;
  if (!Parse(argc, argv, &options)) return 2;
  std::string error;
  CudaPlugin* plugin = OpenCudaPlugin(options.plugin, &error);
  if (plugin == nullptr) {
    std::fprintf(stderr, "kernel_check: %s\n", error.c_str());
    std::printf("0 passed, 1 failed\n");
    return 1;
  }
  const std::vector<Case> cases = AllCases();
  const std::vector<CudaDeviceInfo> devices = plugin->Devices();
  if (devices.empty()) {
    std::printf("There is no GPU here: nothing was run.\n0 passed, 0 failed, %zu skipped\n",
                cases.size());
    return 0;
  }
  const int device = devices[0].ordinal;
  std::printf("GPU %d: %s, %.1f GB\n", device, devices[0].model.c_str(),
              static_cast<double>(devices[0].memory_bytes) * 1e-9);
  if (options.bench) {
    error = RunBench(plugin, device, options.only);
    if (!error.empty()) std::printf("FAILED  bench: %s\n", error.c_str());
    std::printf("%d passed, %d failed\n", error.empty() ? 1 : 0, error.empty() ? 0 : 1);
    return error.empty() ? 0 : 1;
  }
  OpRegistry ops;
  RegisterAllOperators(ops);
  const std::unique_ptr<Backend> cpu = NewCpuBackend();
  const std::unique_ptr<Backend> cuda = NewCudaBackend(plugin, device);
  Tally tally(options);
  if (options.only.empty()) CheckCoverage(ops, *cpu, *cuda, &tally);
  for (const Case& c : cases) {
    if ((c.op + " " + c.name).find(options.only) == std::string::npos) continue;
    for (const Verdict& verdict : RunCase(c, ops, *cpu, *cuda)) tally.Add(verdict);
  }
  if (options.only.empty()) {
    for (const Verdict& verdict : CheckProperties(plugin, device, *cuda)) tally.Add(verdict);
  }
  return tally.Finish();
}

}  // namespace
}  // namespace espalier::gpu_check

int main(int argc, char** argv) { return espalier::gpu_check::Main(argc, argv); }
