// Runs a CUDA kernel without a GPU: each thread of a block is a coroutine that gives way where
// lanes meet. For the logic of kernels, not for their rounding: products of tensor cores are summed
// in double.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace espalier::emulation {

struct Index {
  uint32_t x = 0, y = 0, z = 0;
};

// What the running thread knows of itself.
struct Thread {
  Index thread, block, grid;
};
const Thread& Current();

// Runs `kernel` for every block of a grid, one after the other, with `threads` in each (a multiple
// of 32) and `shared_bytes` of memory. Returns an error where lanes wait for others that never
// come.
std::string Launch(Index grid, int threads, int64_t shared_bytes,
                   const std::function<void()>& kernel);

// The block's memory.
void* SharedMemory();
// All threads of the block that have not returned.
void MeetInBlock();
// All lanes of the warp: returns what each gave, 32 times `bytes`, which stays until the lane meets
// the others again.
const void* MeetInWarp(const void* given, size_t bytes);

}  // namespace espalier::emulation
