#include "server/sessions/session_tensors.h"

#include <gtest/gtest.h>

#include <cstring>

namespace espalier {
namespace {

std::string Bytes(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

v1::TensorPart Part(const std::string& name, std::vector<int64_t> dims, int64_t offset,
                    const std::string& data) {
  v1::TensorPart part;
  part.set_kind(v1::SESSION_PARAMETER);
  part.set_name(name);
  part.set_dtype(v1::F32);
  for (int64_t dim : dims) part.add_dims(dim);
  part.set_offset(offset);
  part.set_data(data);
  return part;
}

TEST(TensorAssembler, PutsPartsTogetherAndRefusesWhatDoesNotFollow) {
  TensorAssembler assembler;
  const std::string bytes = Bytes({1, 2, 3, 4});
  ASSERT_TRUE(assembler.Add(Part("a", {2, 2}, 0, bytes.substr(0, 6))).ok());
  ASSERT_TRUE(assembler.Add(Part("a", {2, 2}, 6, bytes.substr(6))).ok());
  ASSERT_TRUE(assembler.Add(Part("b", {}, 0, Bytes({5}))).ok());
  auto tensors = assembler.Take();
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  ASSERT_EQ(tensors->size(), 2u);
  EXPECT_EQ((*tensors)[0].data, bytes);
  EXPECT_EQ((*tensors)[1].data, Bytes({5}));

  const v1::TensorPart wrong[] = {Part("a", {2, 2}, 4, "abcd"),   // begins in the middle
                                  Part("a", {1}, 0, "abcdefgh"),  // too long
                                  Part("a", {0}, 0, ""),          // no elements
                                  Part("a", {int64_t{1} << 40, int64_t{1} << 40}, 0, "abcd"),
                                  Part("a", {-1, -1}, 0, "abcd")};
  for (const v1::TensorPart& part : wrong) {
    TensorAssembler fresh;
    EXPECT_EQ(fresh.Add(part).code(), absl::StatusCode::kInvalidArgument)
        << part.ShortDebugString();
  }
  ASSERT_TRUE(assembler.Add(Part("a", {2}, 0, "abcd")).ok());
  EXPECT_EQ(assembler.Take().status().code(), absl::StatusCode::kInvalidArgument);  // incomplete
  ASSERT_TRUE(assembler.Add(Part("a", {1}, 0, "abcd")).ok());
  EXPECT_EQ(assembler.Add(Part("a", {1}, 0, "abcd")).code(), absl::StatusCode::kInvalidArgument);
}

TEST(TensorAssembler, IsTheInverseOfSplitting) {
  WholeTensor tensor{v1::SESSION_PARAMETER, "w", {DType::kF32, {3, 1 << 20}}, ""};
  tensor.data.resize(static_cast<size_t>(tensor.type.bytes()));
  for (size_t i = 0; i < tensor.data.size(); ++i) tensor.data[i] = static_cast<char>(i * 31 / 7);
  TensorAssembler assembler;
  int parts = 0;
  ASSERT_TRUE(SplitIntoParts({tensor}, [&](v1::TensorPart part) {
                ++parts;
                return assembler.Add(std::move(part));
              }).ok());
  EXPECT_EQ(parts, 2);
  auto whole = assembler.Take();
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ((*whole)[0].data, tensor.data);
}

v1::RankTensor Shard(int buffer, const std::string& name, std::vector<int64_t> dims,
                     std::vector<int64_t> offset, std::vector<int64_t> global) {
  v1::RankTensor shard;
  shard.set_buffer(buffer);
  shard.set_kind(v1::SESSION_PARAMETER);
  shard.set_name(name);
  shard.mutable_spec()->set_dtype(v1::F32);
  for (int64_t d : dims) shard.mutable_spec()->add_dims(d);
  for (int64_t d : offset) shard.mutable_spec()->add_offset(d);
  for (int64_t d : global) shard.mutable_spec()->add_global(d);
  return shard;
}

TEST(SessionTensors, GathersShardsAndWritesReplicas) {
  std::vector<v1::LoadProgramReply> loaded(2);
  // Columns of w on two ranks; b on both.
  *loaded[0].add_tensors() = Shard(7, "w", {2, 1}, {0, 0}, {2, 2});
  *loaded[1].add_tensors() = Shard(3, "w", {2, 1}, {0, 1}, {2, 2});
  *loaded[0].add_tensors() = Shard(8, "b", {1}, {}, {});
  *loaded[1].add_tensors() = Shard(4, "b", {1}, {}, {});
  auto tensors = SessionTensors::Create(loaded);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  ASSERT_EQ(tensors->List().size(), 2u);
  EXPECT_EQ(tensors->Matching(v1::SESSION_PARAMETER, "*").size(), 2u);
  EXPECT_EQ(tensors->Find(v1::SESSION_PARAMETER, "w")->dims, (Dims{2, 2}));
  const auto missing = tensors->Find(v1::SESSION_PARAMETER, "v");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(missing.status().message().find("b, w"), absl::string_view::npos);

  const SessionTensors::Names names = {{v1::SESSION_PARAMETER, "w"}, {v1::SESSION_PARAMETER, "b"}};
  const auto reads = tensors->ReadsOf(names, false);
  ASSERT_EQ(reads.size(), 2u);
  EXPECT_EQ(reads[0].buffers_size(), 2);  // and b
  EXPECT_EQ(reads[1].buffers_size(), 1);
  std::vector<RankBuffers> buffers(2);
  buffers[0] = {{{false, 7}, Bytes({1, 3})}, {{false, 8}, Bytes({9})}};
  buffers[1] = {{{false, 3}, Bytes({2, 4})}};
  auto whole = tensors->Gather(names, false, buffers);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ((*whole)[0].data, Bytes({1, 2, 3, 4}));
  EXPECT_EQ((*whole)[1].data, Bytes({9}));
  buffers[1].clear();
  EXPECT_EQ(tensors->Gather(names, false, buffers).status().code(), absl::StatusCode::kInternal);

  const auto writes = tensors->WritesOf((*whole)[0]);
  EXPECT_EQ(writes.at(0).at(0).data(), Bytes({1, 3}));
  EXPECT_EQ(writes.at(1).at(0).data(), Bytes({2, 4}));
  EXPECT_EQ(writes.at(1).at(0).buffer(), 3);
  EXPECT_EQ(tensors->WritesOf((*whole)[1]).size(), 2u);
}

TEST(SessionTensors, RefusesShardsThatDoNotMakeAWhole) {
  std::vector<v1::LoadProgramReply> loaded(1);
  *loaded[0].add_tensors() = Shard(0, "w", {1, 2}, {0, 0}, {2, 2});
  EXPECT_EQ(SessionTensors::Create(loaded).status().code(), absl::StatusCode::kInternal);
  *loaded[0].add_tensors() = Shard(1, "w", {1, 2}, {1, 1}, {2, 2});  // beyond the tensor
  EXPECT_EQ(SessionTensors::Create(loaded).status().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace espalier
