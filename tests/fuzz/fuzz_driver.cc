// Replacement for libFuzzer's driver: calls LLVMFuzzerTestOneInput on files and on random mutations
// of them.
//
//   TARGET [--seconds=N] [--seed=N] [--artifact=FILE] CORPUS...
//
// Without --seconds runs each file once, unchanged. CORPUS: files or folders. Writes each input to
// FILE before it runs, so that a crash leaves it there.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
// Custom mutator of structure-aware targets; libFuzzer's interface.
extern "C" __attribute__((weak)) size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size,
                                                                size_t max_size, unsigned seed);

namespace {

namespace fs = std::filesystem;
using Random = std::mt19937_64;

std::string Read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void Add(const fs::path& path, std::vector<std::string>* corpus) {
  const std::string bytes = Read(path);
  if (path.extension() != ".pack") {
    corpus->push_back(bytes);
    return;
  }
  for (size_t at = 0; at + 4 <= bytes.size();) {
    size_t length = 0;
    for (int i = 3; i >= 0; --i) length = length << 8 | static_cast<unsigned char>(bytes[at + i]);
    corpus->push_back(bytes.substr(at + 4, length));
    at += 4 + length;
  }
}

size_t Below(Random& random, size_t n) { return n == 0 ? 0 : random() % n; }

// Numbers near overflow, as varints.
std::string Varint(Random& random) {
  static constexpr uint64_t kEdges[] = {0,          1,          2,          127,       255,
                                        256,        0x7fffffff, 0xffffffff, 1000003,   1ull << 40,
                                        1ull << 62, 1ull << 63, ~0ull,      ~0ull - 1, 1ull << 31};
  uint64_t value = kEdges[Below(random, std::size(kEdges))];
  std::string out;
  for (; value >= 128; value >>= 7) out += static_cast<char>(value | 128);
  return out + static_cast<char>(value);
}

void Mutate(Random& random, const std::vector<std::string>& corpus, std::string* bytes) {
  const size_t at = Below(random, bytes->size() + 1);
  switch (Below(random, 7)) {
    case 0:  // replace a byte
      if (at < bytes->size()) (*bytes)[at] = static_cast<char>(random());
      return;
    case 1:  // flip a bit
      if (at < bytes->size()) (*bytes)[at] ^= static_cast<char>(1 << Below(random, 8));
      return;
    case 2:
      bytes->erase(at, Below(random, 16));
      return;
    case 3: {
      const std::string number = Varint(random);
      bytes->replace(at, std::min(bytes->size() - at, Below(random, number.size() + 1)), number);
      return;
    }
    case 4: {  // copy a part of itself
      const std::string piece = bytes->substr(Below(random, bytes->size() + 1), Below(random, 64));
      bytes->insert(at, piece);
      return;
    }
    case 5: {  // insert a part of another file
      const std::string& other = corpus[Below(random, corpus.size())];
      const std::string piece = other.substr(Below(random, other.size() + 1), Below(random, 256));
      bytes->replace(at, std::min(bytes->size() - at, Below(random, 2) * piece.size()), piece);
      return;
    }
    default:  // write a small number, as most fields hold
      if (at < bytes->size()) (*bytes)[at] = static_cast<char>(Below(random, 32));
      return;
  }
}

void MutateByTarget(Random& random, std::string* bytes) {
  const size_t size = bytes->size();
  bytes->resize(size + 4096);
  bytes->resize(LLVMFuzzerCustomMutator(reinterpret_cast<uint8_t*>(bytes->data()), size,
                                        bytes->size(), static_cast<unsigned>(random())));
}

void Try(const std::string& bytes) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

}  // namespace

int main(int argc, char** argv) {
  int64_t seconds = 0;
  uint64_t seed = 1;
  std::string artifact;
  std::vector<std::string> corpus;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto value = [&](const std::string& flag) {
      return argument.rfind(flag, 0) == 0 ? argument.substr(flag.size()) : "";
    };
    if (!value("--seconds=").empty()) {
      seconds = std::atoll(value("--seconds=").c_str());
    } else if (!value("--seed=").empty()) {
      seed = static_cast<uint64_t>(std::atoll(value("--seed=").c_str()));
    } else if (!value("--artifact=").empty()) {
      artifact = value("--artifact=");
    } else if (fs::is_directory(argument)) {
      for (const auto& entry : fs::recursive_directory_iterator(argument)) {
        if (entry.is_regular_file()) Add(entry.path(), &corpus);
      }
    } else {
      Add(argument, &corpus);
    }
  }
  if (corpus.empty()) {
    std::fprintf(stderr, "no files\n");
    return 2;
  }
  for (const std::string& bytes : corpus) Try(bytes);
  Random random(seed);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  int64_t tried = static_cast<int64_t>(corpus.size());
  while (std::chrono::steady_clock::now() < end) {
    std::string bytes = corpus[Below(random, corpus.size())];
    if (LLVMFuzzerCustomMutator != nullptr && Below(random, 2) == 0) {
      MutateByTarget(random, &bytes);
    } else {
      for (size_t n = 1 + Below(random, 6); n > 0; --n) Mutate(random, corpus, &bytes);
    }
    if (!artifact.empty()) std::ofstream(artifact, std::ios::binary) << bytes;
    Try(bytes);
    ++tried;
  }
  std::printf("%lld inputs tried\n", static_cast<long long>(tried));
  return 0;
}
