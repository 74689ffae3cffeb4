// Runs a CUDA kernel on the CPU: each thread of a block is a coroutine that yields at barriers and
// warp exchanges. Tests the logic of kernels, not their rounding: tensor-core products are summed
// in double.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace espalier::emulation {

struct Index {
  uint32_t x = 0, y = 0, z = 0;
};

// The built-in variables of the running thread.
struct Thread {
  Index thread, block, grid;
};
const Thread& Current();

// Runs `kernel` for every block of a grid, one after the other, with `threads` threads (a multiple
// of 32) and `shared_bytes` of dynamic shared memory. Returns an error on a divergent barrier:
// lanes wait for others that never arrive.
std::string Launch(Index grid, int threads, int64_t shared_bytes,
                   const std::function<void()>& kernel);

// Returns the block's dynamic shared memory.
void* SharedMemory();
// A barrier of all threads of the block that have not returned (__syncthreads).
void MeetInBlock();
// Exchange among all lanes of the warp: returns the values of all 32 lanes, `bytes` each, valid
// until the lane's next exchange.
const void* MeetInWarp(const void* given, size_t bytes);

}  // namespace espalier::emulation
