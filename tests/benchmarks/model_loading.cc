// Peak memory and time of loading a model, compared with the size of its parameters. Compares
// bounded reads, the production method, with copying from a mapped file and with reading the whole
// file first, each in its own process.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "models/model.h"
#include "models/quantize.h"
#include "ops/operators/register_all.h"
#include "ops/tensor/half_conversion.h"
#include "planner/planner.h"
#include "storage/safetensors.h"
#include "tests/benchmarks/report.h"
#include "tests/benchmarks/seconds.h"
#include "worker/runner/program_model_runner.h"

ABSL_FLAG(bool, json, false, "print JSON instead of tables");
ABSL_FLAG(std::string, json_file, "", "also write the JSON here");
ABSL_FLAG(std::string, folder, "", "where the model is written; empty: a temporary one");
ABSL_FLAG(int, hidden, 2048, "of the model");
ABSL_FLAG(int, layers, 6, "of the model");
ABSL_FLAG(double, resident_fraction, 0.4, "fraction of the weights that is not streamed");

namespace espalier {
namespace {

constexpr int kPositions = 128;
constexpr double kMB = 1 << 20;

std::string ConfigText() {
  const int hidden = absl::GetFlag(FLAGS_hidden);
  return absl::StrCat(
      R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 32000, "num_attention_heads": 16,
          "tie_word_embeddings": true, "max_position_embeddings": 256, "hidden_size": )",
      hidden, R"(, "intermediate_size": )", hidden * 11 / 4 / 32 * 32, R"(, "num_hidden_layers": )",
      absl::GetFlag(FLAGS_layers), "}");
}

absl::StatusOr<ServingModel> Build(const OpRegistry& registry, WeightFormat format) {
  const absl::StatusOr<LanguageModel> model = ReadModel(ConfigText());
  if (!model.ok()) return model.status();
  absl::StatusOr<ServingModel> serving =
      BuildServing(registry, *model, {8, 8, 256, 4, 256, 64, kPositions});
  if (!serving.ok()) return serving.status();
  if (absl::Status s = BindAndInfer(registry, 1, &serving->graph); !s.ok()) return s;
  AddImplicitSources(serving->graph, &serving->weights);
  return ToServingFormat(registry, *std::move(serving), model->facts, format);
}

int64_t ParameterBytes(const Graph& graph) {
  int64_t bytes = 0;
  for (const Value& value : graph.values()) {
    if (value.kind == ValueKind::kParameter) bytes += value.type.bytes();
  }
  return bytes;
}

// Writes all tensors of the model into one file. Elements repeat: only sizes matter.
absl::Status WriteModel(const OpRegistry& registry, const std::string& folder, DType dtype) {
  const absl::StatusOr<ServingModel> serving = Build(registry, WeightFormat::kF32);
  if (!serving.ok()) return serving.status();
  std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  if (absl::Status s = files->CreateDirectories(folder); !s.ok()) return s;
  std::vector<SafetensorsWriter::Tensor> tensors;
  for (const auto& [parameter, source] : serving->weights.sources) {
    for (const WeightSlice& piece : source.pieces) {
      tensors.push_back({piece.tensor, {dtype, piece.dims}});
    }
  }
  std::mt19937 random(1);
  std::vector<char> block(1 << 20);
  const int64_t size = static_cast<int64_t>(SizeOf(dtype));
  for (size_t i = 0; i < block.size(); i += static_cast<size_t>(size)) {
    const float value = static_cast<float>(static_cast<int>(random() % 256) - 128) / 4096;
    const uint16_t narrow = F32ToBF16(value);
    std::memcpy(block.data() + i, dtype == DType::kF32 ? static_cast<const void*>(&value) : &narrow,
                static_cast<size_t>(size));
  }
  SafetensorsWriter writer(*files, JoinPath(folder, "model.safetensors"));
  if (absl::Status s = writer.Begin(tensors, {}); !s.ok()) return s;
  for (const auto& tensor : tensors) {
    for (int64_t left = tensor.type.bytes(); left > 0;) {
      const int64_t here = std::min(left, static_cast<int64_t>(block.size()));
      if (absl::Status s = writer.Append(block.data(), here); !s.ok()) return s;
      left -= here;
    }
  }
  return writer.Finish().status();
}

struct Loaded {
  double seconds = 0, peak_mb = 0, parameter_mb = 0;
};

// Resets this process's peak memory (VmHWM) to the current value.
void ResetPeakMemory() { std::ofstream("/proc/self/clear_refs") << "5"; }
double StatusMB(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(field + ":", 0) == 0) return std::atof(line.c_str() + field.size() + 1) / 1024;
  }
  return 0;
}

struct Way {
  std::string name;
  DType file = DType::kBF16;
  WeightFormat format = WeightFormat::kF32;
  bool streams = false;
  enum { kPieces, kMapped, kWhole } read = kPieces;
};

absl::Status CopyAll(const char* data, const SafetensorsFile& file, Executor& executor,
                     const WeightMap& map) {
  for (int i = 0; i < executor.num_buffers(); ++i) {
    if (executor.buffer(i).kind() != v1::PARAMETER_SHARD) continue;
    int64_t at = 0;
    for (const WeightSlice& piece : map.sources.at(executor.tensor_name(i)).pieces) {
      const SafetensorsEntry& entry = file.tensors().at(piece.tensor);
      const int64_t row = entry.bytes / piece.dims[0];
      const int64_t bytes = (piece.end - piece.begin) * row;
      absl::Status s = executor.WriteBuffer(i, data + entry.offset + piece.begin * row, bytes, at);
      if (!s.ok()) return s;
      at += bytes;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Loaded> Load(const OpRegistry& registry, const std::string& folder, const Way& way) {
  const absl::StatusOr<ServingModel> serving = Build(registry, way.format);
  if (!serving.ok()) return serving.status();
  Loaded out;
  out.parameter_mb = static_cast<double>(ParameterBytes(serving->graph)) / kMB;
  ServingLowering lowering;
  if (way.streams) {
    out.parameter_mb *= absl::GetFlag(FLAGS_resident_fraction);
    lowering.resident_weight_bytes = static_cast<int64_t>(out.parameter_mb * kMB);
  }
  const absl::StatusOr<v1::Program> program = LowerServing(registry, serving->graph, lowering);
  if (!program.ok()) return program.status();
  std::unique_ptr<Device> device = NewCpuDevice({2, int64_t{1} << 33});
  const std::string path = JoinPath(folder, "model.safetensors");
  ResetPeakMemory();
  const double before = StatusMB("VmRSS"), start = Seconds();
  auto runner = ProgramModelRunner::Create(*program, way.read == Way::kPieces ? folder : "",
                                           kPositions, device.get(), serving->weights);
  if (!runner.ok()) return runner.status();
  if (way.read != Way::kPieces) {
    std::unique_ptr<FileSystem> files = NewPosixFileSystem();
    const auto file = SafetensorsFile::Open(*files, path);
    if (!file.ok()) return file.status();
    const int64_t bytes = (*file)->file()->size();
    std::vector<char> whole;
    const char* data = nullptr;
    if (way.read == Way::kWhole) {
      whole.resize(static_cast<size_t>(bytes));
      if (absl::Status s = (*file)->file()->Read(0, bytes, whole.data()); !s.ok()) return s;
      data = whole.data();
    } else {
      const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
      void* mapped = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ, MAP_PRIVATE, fd, 0);
      close(fd);
      if (mapped == MAP_FAILED) return absl::UnavailableError("mmap failed");
      data = static_cast<const char*>(mapped);
    }
    absl::Status s = CopyAll(data, **file, (*runner)->executor(), serving->weights);
    if (!s.ok()) return s;
  }
  out.seconds = Seconds() - start;
  out.peak_mb = StatusMB("VmHWM") - before;
  return out;
}

// Runs `work` in a child process.
absl::StatusOr<Loaded> RunInChildProcess(const std::function<absl::StatusOr<Loaded>()>& work) {
  int ends[2];
  if (pipe(ends) != 0) return absl::UnavailableError("pipe failed");
  const pid_t child = fork();
  if (child == 0) {
    const absl::StatusOr<Loaded> result = work();
    if (!result.ok()) std::fprintf(stderr, "%s\n", result.status().ToString().c_str());
    const bool told = result.ok() && write(ends[1], &*result, sizeof(Loaded)) == sizeof(Loaded);
    _exit(told ? 0 : 1);
  }
  close(ends[1]);
  Loaded loaded;
  const bool got = read(ends[0], &loaded, sizeof(loaded)) == sizeof(loaded);
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (!got || status != 0) return absl::InternalError("a process that loads has failed");
  return loaded;
}

absl::Status Measure(Report* report) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  const std::string given = absl::GetFlag(FLAGS_folder);
  const std::string base =
      given.empty() ? JoinPath(std::filesystem::temp_directory_path(), "espalier-loading") : given;
  report->Table("Loading", {"way", "parameters MB", "peak MB", "peak / parameters", "s"});
  for (const DType file : {DType::kF32, DType::kBF16}) {
    const std::string folder = JoinPath(base, file == DType::kF32 ? "f32" : "bf16");
    // Also writes in a child, so that its memory does not count.
    const absl::StatusOr<Loaded> written = RunInChildProcess([&]() -> absl::StatusOr<Loaded> {
      absl::Status s = WriteModel(registry, folder, file);
      if (!s.ok()) return s;
      return Loaded();
    });
    if (!written.ok()) return written.status();
    std::vector<Way> ways;
    if (file == DType::kF32) {
      ways = {
          {"f32 from f32, the whole file read first", file, WeightFormat::kF32, false, Way::kWhole},
          {"f32 from f32, mapped", file, WeightFormat::kF32, false, Way::kMapped},
          {"f32 from f32", file},
          {"f32 from f32, streaming from the file", file, WeightFormat::kF32, true}};
    } else {
      ways = {{"f32 from bf16", file},
              {"bf16 from bf16", file, WeightFormat::kBF16},
              {"int8 from bf16", file, WeightFormat::kInt8},
              {"int4 from bf16", file, WeightFormat::kInt4}};
    }
    for (const Way& way : ways) {
      const absl::StatusOr<Loaded> loaded =
          RunInChildProcess([&] { return Load(registry, folder, way); });
      if (!loaded.ok()) return loaded.status();
      report->Row({Text(way.name), Number(loaded->parameter_mb, 0), Number(loaded->peak_mb, 0),
                   Number(loaded->peak_mb / loaded->parameter_mb, 3), Number(loaded->seconds, 2)});
    }
    std::filesystem::remove_all(folder);
  }
  report->Note(
      "Peak: how much the process grew while it loaded (VmHWM), the arena's other buffers and the "
      "code of kernels included. Where weights stream, parameters are those that stay. The file is "
      "in the page cache.");
  return absl::OkStatus();
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  espalier::Report report("model_loading");
  if (absl::Status status = espalier::Measure(&report); !status.ok()) {
    std::fprintf(stderr, "loading: %s\n", status.ToString().c_str());
    return 1;
  }
  return report.Print(absl::GetFlag(FLAGS_json), absl::GetFlag(FLAGS_json_file));
}
