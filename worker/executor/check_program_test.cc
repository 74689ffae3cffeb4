#include "worker/executor/executor_fixture.h"

namespace espalier {
namespace {

TEST_F(ExecutorTest, RefusesInconsistentPrograms) {
  auto good = [] {
    ProgramWriter w;
    const int a = w.Buffer("a", {4}), b = w.Buffer("b", {4});
    w.Compute("relu", {a}, {b});
    return w;
  };
  ASSERT_TRUE(Make(good().program).ok());
  {
    ProgramWriter w = good();
    w.program.mutable_instructions(0)->mutable_compute()->set_inputs(0, 7);
    ExpectRefused(w.program, "instruction 0 (relu of 'node_relu'): an input is buffer 7");
    (*w.program.mutable_sources())["node_relu"] = "train.py:12";
    ExpectRefused(w.program, "instruction 0 (relu of 'node_relu', train.py:12): an input is");
  }
  {
    ProgramWriter w = good();
    w.program.mutable_buffers(1)->set_offset_bytes(w.program.arena_bytes());
    ExpectRefused(w.program, "beyond the arena");
  }
  {
    ProgramWriter w = good();
    w.program.mutable_buffers(1)->set_offset_bytes(INT64_MAX - 63);
    ExpectRefused(w.program, "beyond the arena");
  }
  {
    ProgramWriter w = good();
    w.program.mutable_buffers(0)->mutable_spec()->set_dims(0, int64_t{1} << 62);
    ExpectRefused(w.program, "overflows");
  }
  {
    ProgramWriter w = good();
    w.program.mutable_buffers(0)->mutable_spec()->set_dims(0, -4);
    ExpectRefused(w.program, "dimension 0 is -4");
  }
  {
    ProgramWriter w = good();
    w.program.mutable_buffers(0)->set_kind(v1::PERSISTENT);
    w.program.mutable_buffers(1)->set_offset_bytes(0);
    ExpectRefused(w.program, "share memory");
  }
  {
    ProgramWriter w = good();
    auto* send = w.Add("s")->mutable_send();
    send->set_peer(1);
    ExpectRefused(w.program, "peer 1 of rank 0 of 1");
  }
  {
    ProgramWriter w = good();
    auto* copy = w.Add("c")->mutable_copy();
    copy->set_destination(1);
    copy->add_source_start(2);
    copy->add_destination_start(0);
    copy->add_size(3);
    ExpectRefused(w.program, "3 elements from 2 of 4");
  }
  {
    ProgramWriter w = good();
    w.Compute("no_such_operator", {0}, {1});
    ExpectRefused(w.program, "no_such_operator");
  }
  {
    ProgramWriter w = good();
    w.Add("strange");
    ExpectRefused(w.program, "instruction 1");
  }
  {
    ProgramWriter w = good();
    w.Report(0, "loss");
    ExpectRefused(w.program, "one f32");
  }
  {
    ProgramWriter w = good();
    w.program.mutable_buffers(0)->set_kind(v1::HOST_INPUT);
    w.Add("x")->mutable_load_batch()->set_buffer(0);
    ExpectRefused(w.program, "no dataset");
  }
  {
    ProgramWriter w = good();
    w.program.set_arena_bytes(int64_t{1} << 40);
    EXPECT_EQ(Make(w.program).status().code(), absl::StatusCode::kResourceExhausted);
  }
}

}  // namespace
}  // namespace espalier
