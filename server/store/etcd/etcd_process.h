// A real etcd for tests: one member on free ports of loopback, with its data in a folder of the
// test.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "server/store/etcd/etcd_client.h"
#include "server/store/etcd/guarded_etcd.h"

namespace espalier {

class EtcdProcess {
 public:
  // Whether etcd is installed: deploy/install.sh --tests does that.
  static bool IsInstalled();

  // Starts etcd and waits until it answers. The process ends with the test, with or without this.
  explicit EtcdProcess(const std::string& folder);
  ~EtcdProcess();

  const std::string& endpoint() const { return endpoint_; }
  std::unique_ptr<EtcdClient> Client() const;
  // The process is stopped and goes on; no call is answered meanwhile.
  void Pause();
  void Continue();

 private:
  std::string endpoint_;
  pid_t pid_ = -1;
};

// Makes a leader's key without a lease in the place of the last one, and returns the right that it
// gives: as if another coordinator had taken over.
LeaderGuard LeadForever(EtcdApi* etcd, const std::string& prefix);

}  // namespace espalier
