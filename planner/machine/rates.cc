#include "planner/machine/rates.h"

namespace espalier {

v1::Device WithDefaults(v1::Device device) {
  if (device.matmul_flops() <= 0) device.set_matmul_flops(2e10);
  if (device.memory_bandwidth() <= 0) device.set_memory_bandwidth(8e9);
  if (device.op_overhead_seconds() <= 0) device.set_op_overhead_seconds(3e-6);
  return device;
}

v1::Link WithDefaults(v1::Link link) {
  if (link.bandwidth() <= 0) link.set_bandwidth(1e9);
  if (link.latency_seconds() <= 0) link.set_latency_seconds(5e-5);
  return link;
}

double TransferSeconds(const v1::Link& link, double bytes) {
  return link.latency_seconds() + bytes / link.bandwidth();
}

double CollectiveSeconds(const v1::Link& link, v1::CollectiveInstruction::Kind kind, int n,
                         double bytes) {
  if (n < 2) return 0;
  const double others = n - 1;
  switch (kind) {
    case v1::CollectiveInstruction::ALL_REDUCE:
      return 2 * others * (link.latency_seconds() + bytes / n / link.bandwidth());
    case v1::CollectiveInstruction::ALL_GATHER:
      return others * TransferSeconds(link, bytes);
    case v1::CollectiveInstruction::REDUCE_SCATTER:
    case v1::CollectiveInstruction::ALL_TO_ALL:
      return others * TransferSeconds(link, bytes / n);
    default:
      return others * TransferSeconds(link, bytes);
  }
}

double MemorySeconds(const v1::Device& device, double bytes) {
  return device.op_overhead_seconds() + bytes / device.memory_bandwidth();
}

}  // namespace espalier
