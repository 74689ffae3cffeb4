// Test fixture: hand-written programs and an executor for them on a small CPU device.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "worker/executor/executor.h"

namespace espalier {

// Builds a program; buffers are placed one after another.
struct ProgramWriter {
  v1::Program program;

  explicit ProgramWriter(int rank = 0, int world = 1) {
    program.set_format_version(1);
    program.set_name("test");
    program.set_rank(rank);
    program.set_world_size(world);
    program.set_seed(5);
  }
  int Buffer(const std::string& name, Dims dims, v1::BufferKind kind = v1::SCRATCH,
             v1::DataType dtype = v1::F32) {
    v1::Buffer* b = program.add_buffers();
    b->set_name(name);
    b->set_kind(kind);
    b->mutable_spec()->set_dtype(dtype);
    for (int64_t d : dims) b->mutable_spec()->add_dims(d);
    b->set_offset_bytes(program.arena_bytes());
    program.set_arena_bytes(program.arena_bytes() + (NumElements(dims) * 8 + 63) / 64 * 64);
    return program.buffers_size() - 1;
  }
  v1::Instruction* Add(const std::string& node) {
    v1::Instruction* i = program.add_instructions();
    i->set_node(node);
    return i;
  }
  void Compute(const std::string& op, std::vector<int> inputs, std::vector<int> outputs) {
    v1::ComputeInstruction* c = Add("node_" + op)->mutable_compute();
    c->set_op(op);
    for (int i : inputs) c->add_inputs(i);
    for (int o : outputs) c->add_outputs(o);
  }
  void Report(int buffer, const std::string& name) {
    v1::ReportInstruction* r = Add("loss")->mutable_report();
    r->set_buffer(buffer);
    r->set_name(name);
  }
};

class ExecutorTest : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Executor>> Make(const v1::Program& program,
                                                 Communicator* communicator = nullptr) {
    ExecutorOptions options;
    options.device = device_.get();
    options.communicator = communicator;
    return Executor::Create(program, options);
  }
  void ExpectRefused(const v1::Program& program, const std::string& what) {
    auto made = Make(program);
    ASSERT_FALSE(made.ok()) << what;
    EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument) << made.status();
    EXPECT_NE(std::string(made.status().message()).find(what), std::string::npos) << made.status();
  }

  std::unique_ptr<Device> device_ = NewCpuDevice({1, 1 << 26});
};

}  // namespace espalier
