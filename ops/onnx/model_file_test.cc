// Large initializers stay in the file, and what is read of them is what the protobuf library reads.
#include "ops/onnx/model_file.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/onnx/import_fixture.h"

namespace espalier::import_fixture {
namespace {

using onnx_import::MemoryFile;
using onnx_import::ModelFile;
using onnx_import::ReadModelFile;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kRows = 1000, kColumns = 100;  // 400 kB of floats

Floats Numbers(int64_t count, uint32_t seed) {
  std::minstd_rand random(seed);
  Floats numbers(static_cast<size_t>(count));
  for (float& number : numbers) number = static_cast<float>(random() % 2000) / 1000 - 1;
  return numbers;
}

onnx::TensorProto Weight(const std::string& name = "w.weight", uint32_t seed = 1) {
  return Tensor(name, {kColumns, kRows}, Numbers(kRows * kColumns, seed));
}

// y = x w
Model Linear(const onnx::TensorProto& weight) {
  return Model({Node("MatMul", {"x", weight.name()}, {"y"})}, {weight}, {kBatch, kColumns});
}

onnx::TensorProto InFloatData(const onnx::TensorProto& raw) {
  onnx::TensorProto tensor = raw;
  tensor.clear_raw_data();
  const size_t count = raw.raw_data().size() / sizeof(float);
  tensor.mutable_float_data()->Resize(static_cast<int>(count), 0);
  std::memcpy(tensor.mutable_float_data()->mutable_data(), raw.raw_data().data(),
              raw.raw_data().size());
  return tensor;
}

onnx::TensorProto InDoubles(const onnx::TensorProto& raw) {
  onnx::TensorProto tensor = raw;
  tensor.set_data_type(onnx::TensorProto::DOUBLE);
  std::vector<double> numbers;
  const onnx::TensorProto floats = InFloatData(raw);
  for (float number : floats.float_data()) numbers.push_back(number);
  tensor.set_raw_data(Bytes(numbers));
  return tensor;
}

// Counts what is read, and may fail.
class WatchedFile : public ReadableFile {
 public:
  explicit WatchedFile(std::string bytes) : file_(MemoryFile(std::move(bytes))) {}
  int64_t size() const override { return file_->size(); }
  absl::Status Read(int64_t offset, int64_t bytes, void* out) const override {
    if (fails) return absl::UnavailableError("the disk is gone");
    bytes_read += bytes;
    return file_->Read(offset, bytes, out);
  }

  mutable int64_t bytes_read = 0;
  bool fails = false;

 private:
  std::shared_ptr<const ReadableFile> file_;
};

absl::StatusOr<ImportedModel> Import(std::shared_ptr<const ReadableFile> file,
                                     const std::string& folder = "") {
  ImportOptions options;
  options.evaluator = CpuEvaluator();
  options.folder = folder;
  return ImportOnnxFile(Operators(), std::move(file), options);
}

absl::StatusOr<std::string> Elements(const InitialValue& value, int64_t parts = 1) {
  std::string all(static_cast<size_t>(value.type.bytes()), '\0');
  const int64_t part = value.type.bytes() / parts;
  for (int64_t i = 0; i < parts; ++i) {
    absl::Status status = value.read(i * part, part, all.data() + i * part);
    if (!status.ok()) return status;
  }
  return all;
}

TEST(ModelFileTest, LargeParametersAreReadWhenTheyAreNeeded) {
  const onnx::TensorProto weight = Weight();
  for (const onnx::TensorProto& form : {weight, InFloatData(weight), InDoubles(weight)}) {
    SCOPED_TRACE(form.ShortDebugString().substr(0, 60));
    const auto file = std::make_shared<WatchedFile>(Linear(form).proto.SerializeAsString());
    const absl::StatusOr<ImportedModel> model = Import(file);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_LT(file->bytes_read, 2 << 16) << "of " << file->size();
    ASSERT_EQ(model->values.size(), 1u);
    const InitialValue& value = model->values[0];
    EXPECT_EQ(value.name, "w.weight");
    EXPECT_EQ(value.type, (TensorType{DType::kF32, {kColumns, kRows}}));
    const Value& parameter = model->graph.value(model->graph.FindValue("w.weight"));
    EXPECT_TRUE(parameter.constant.empty());
    EXPECT_TRUE(parameter.trainable);
    EXPECT_EQ(parameter.initializer.kind, Initializer::kStored);
    for (int64_t parts : {1, 8}) {
      const absl::StatusOr<std::string> elements = Elements(value, parts);
      ASSERT_TRUE(elements.ok()) << elements.status();
      EXPECT_TRUE(*elements == weight.raw_data()) << parts;
    }
    file->fails = true;
    EXPECT_THAT(std::string(Elements(value).status().message()),
                AllOf(HasSubstr("'w.weight'"), HasSubstr("the disk is gone")));
    // The same model with all values in the graph.
    const absl::StatusOr<Graph> whole =
        ImportOnnx(Operators(), Linear(form).proto.SerializeAsString());
    ASSERT_TRUE(whole.ok()) << whole.status();
    EXPECT_TRUE(whole->value(whole->FindValue("w.weight")).constant == weight.raw_data());
  }
}

TEST(ModelFileTest, ExternalDataIsReadWhenItIsNeeded) {
  const std::string folder = ::testing::TempDir() + "/model_file_test";
  std::filesystem::create_directories(folder);
  const onnx::TensorProto weight = Weight();
  const auto write = [&](size_t bytes) {
    std::ofstream(folder + "/weights.bin", std::ios::binary)
        << "1234" << weight.raw_data().substr(0, bytes);
  };
  onnx::TensorProto outside = weight;
  outside.clear_raw_data();
  outside.set_data_location(onnx::TensorProto::EXTERNAL);
  for (const auto& [key, text] : std::map<std::string, std::string>{
           {"location", "weights.bin"}, {"offset", "4"}, {"length", "400000"}}) {
    outside.add_external_data()->set_key(key);
    outside.mutable_external_data()->rbegin()->set_value(text);
  }
  const std::string bytes = Linear(outside).proto.SerializeAsString();
  write(weight.raw_data().size());
  const absl::StatusOr<ImportedModel> model = Import(MemoryFile(bytes), folder);
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_EQ(model->values.size(), 1u);
  const absl::StatusOr<std::string> elements = Elements(model->values[0], 8);
  ASSERT_TRUE(elements.ok()) << elements.status();
  EXPECT_TRUE(*elements == weight.raw_data());

  write(weight.raw_data().size() - 1);
  EXPECT_THAT(std::string(Import(MemoryFile(bytes), folder).status().message()),
              AllOf(HasSubstr("'w.weight'"), HasSubstr("are needed")));
  EXPECT_THAT(std::string(Elements(model->values[0]).status().message()),
              AllOf(HasSubstr("'w.weight'"), HasSubstr("became shorter")));
  std::filesystem::remove_all(folder);
}

// A copy of a parameter that a normalization updates has a name of its own.
TEST(ModelFileTest, CopiesOfLargeParametersHaveTheirElements) {
  constexpr int64_t kChannels = 20000;  // 80 kB
  std::vector<onnx::TensorProto> tensors;
  for (const char* name : {"scale", "shift", "mean", "variance"}) {
    tensors.push_back(Tensor(name, {kChannels}, Numbers(kChannels, name[0])));
  }
  const Model model({Node("BatchNormalization", {"x", "scale", "shift", "mean", "variance"}, {"n"}),
                     Node("Add", {"n", "mean"}, {"y"})},
                    tensors, {kBatch, kChannels});
  const absl::StatusOr<ImportedModel> imported =
      Import(MemoryFile(model.proto.SerializeAsString()));
  ASSERT_TRUE(imported.ok()) << imported.status();
  std::map<std::string, std::string> found;
  for (const InitialValue& value : imported->values) found[value.name] = *Elements(value);
  std::map<std::string, std::string> expected;
  for (const onnx::TensorProto& tensor : tensors) expected[tensor.name()] = tensor.raw_data();
  expected["mean.1"] = expected["mean"];  // the running one
  EXPECT_EQ(found.size(), expected.size());
  EXPECT_TRUE(found == expected);
}

TEST(ModelFileTest, WrongLengthsAreRefusedWithTheTensor) {
  onnx::TensorProto weight = Weight();
  weight.mutable_raw_data()->pop_back();
  EXPECT_THAT(Linear(weight).Error(),
              AllOf(HasSubstr("'w.weight'"), HasSubstr("has 399999 bytes of raw data"),
                    HasSubstr("needs 400000")));
  onnx::TensorProto floats = InFloatData(Weight());
  floats.mutable_float_data()->RemoveLast();
  EXPECT_THAT(
      Linear(floats).Error(),
      AllOf(HasSubstr("'w.weight'"), HasSubstr("has 99999 elements"), HasSubstr("needs 100000")));
  const std::string whole = Linear(Weight()).proto.SerializeAsString();
  for (size_t cut : {size_t{0}, size_t{1}, size_t{100}, whole.size() / 2, whole.size() - 1}) {
    EXPECT_THAT(std::string(Import(MemoryFile(whole.substr(0, cut))).status().message()),
                HasSubstr(absl::StrCat("these ", cut, " bytes are no complete ONNX model")));
  }
  const auto broken = std::make_shared<WatchedFile>(whole);
  broken->fails = true;
  EXPECT_EQ(Import(broken).status().code(), absl::StatusCode::kUnavailable);
}

// A file whose size is all that matters.
class HugeFile : public ReadableFile {
 public:
  int64_t size() const override { return int64_t{3} << 30; }
  absl::Status Read(int64_t, int64_t, void*) const override { return absl::InternalError("read"); }
};

TEST(ModelFileTest, FilesThatTheFormatDoesNotAllowAreRefused) {
  const absl::Status status = Import(std::make_shared<HugeFile>()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("external data"));
}

// Puts the elements that were left in the file where the protobuf library has them.
std::string WithElements(const ModelFile& file) {
  onnx::ModelProto model = file.model;
  for (int i = 0; i < model.graph().initializer_size(); ++i) {
    const auto left = file.left.find(&file.model.graph().initializer(i));
    if (left == file.left.end()) continue;
    std::string bytes(static_cast<size_t>(left->second.bytes), '\0');
    EXPECT_TRUE(file.file->Read(left->second.offset, left->second.bytes, bytes.data()).ok());
    onnx::TensorProto* tensor = model.mutable_graph()->mutable_initializer(i);
    if (left->second.raw) {
      tensor->set_raw_data(bytes);
    } else {
      tensor->mutable_float_data()->Resize(static_cast<int>(bytes.size() / sizeof(float)), 0);
      std::memcpy(tensor->mutable_float_data()->mutable_data(), bytes.data(), bytes.size());
    }
  }
  return model.SerializeAsString();
}

// Returns whether the bytes are a model; both ways of reading must agree.
bool ExpectAsProtobuf(const std::string& bytes) {
  onnx::ModelProto model;
  const bool good = model.ParseFromString(bytes) && model.has_graph();
  const absl::StatusOr<std::unique_ptr<const ModelFile>> file =
      ReadModelFile(MemoryFile(bytes), "");
  EXPECT_EQ(file.ok(), good) << file.status();
  if (good && file.ok()) {
    EXPECT_TRUE(WithElements(**file) == model.SerializeAsString());
  }
  return good;
}

TEST(ModelFileTest, UnusualFormsAreReadAsTheProtobufLibraryDoes) {
  const std::string base = Linear(Weight()).proto.SerializeAsString();
  // Messages that are given twice are merged; of raw_data the last one counts, and lists grow.
  const auto with = [&](const std::vector<onnx::TensorProto>& parts) {
    std::string tensor;
    for (const onnx::TensorProto& part : parts) tensor += part.SerializeAsString();
    onnx::GraphProto graph;
    graph.mutable_unknown_fields()->AddLengthDelimited(5, tensor);
    onnx::ModelProto model;
    model.mutable_unknown_fields()->AddLengthDelimited(7, graph.SerializeAsString());
    return base + model.SerializeAsString();
  };
  onnx::TensorProto small = Tensor("w.weight", {2}, Floats{1, 2});
  for (const onnx::TensorProto& first :
       {Weight("a"), InFloatData(Weight("a")), small, InFloatData(small), InDoubles(Weight("a"))}) {
    EXPECT_TRUE(ExpectAsProtobuf(with({first})));
    for (const onnx::TensorProto& second : {Weight("b", 2), InFloatData(Weight("b", 2)), small}) {
      EXPECT_TRUE(ExpectAsProtobuf(with({first, second})));
    }
  }
  EXPECT_TRUE(ExpectAsProtobuf(base + base));
  EXPECT_FALSE(ExpectAsProtobuf(""));
  EXPECT_FALSE(ExpectAsProtobuf("not a model at all"));
}

TEST(ModelFileTest, DamagedFilesAreReadAsTheProtobufLibraryDoes) {
  Model model = Linear(Weight());
  *model.proto.mutable_graph()->add_initializer() = InFloatData(Weight("f"));
  *model.proto.mutable_graph()->add_initializer() = Tensor("i", {3}, Int64s{1, 2, 3});
  const std::string whole = model.proto.SerializeAsString();
  // Where the fields are: at the ends, and around the elements of the first weight and the second.
  std::vector<size_t> places;
  const size_t first = Weight().raw_data().size();
  for (const size_t middle : {size_t{0}, first + 90, whole.size()}) {
    for (size_t at = middle > 150 ? middle - 150 : 0; at < std::min(middle + 150, whole.size());
         ++at) {
      places.push_back(at);
    }
  }
  std::mt19937_64 random(47);
  int good = 0;
  for (int round = 0; round < 600; ++round) {
    std::string bytes = whole;
    for (int change = 0; change <= round % 3; ++change) {
      bytes[places[random() % places.size()]] = static_cast<char>(random());
    }
    if (round % 10 == 0) bytes.resize(places[random() % places.size()]);
    good += ExpectAsProtobuf(bytes);
    if (::testing::Test::HasFailure()) FAIL() << "round " << round;
  }
  EXPECT_GT(good, 50);
}

}  // namespace
}  // namespace espalier::import_fixture
