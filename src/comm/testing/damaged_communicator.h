// For tests: one message of all that a rank receives comes with one wrong number.
//
//   messages 0, 1, 2, 3 of two samples with two each; damaged 2: the second sample is wrong
#pragma once
#include <utility>
#include <vector>

#include "comm/testing/late_communicator.h"

namespace longnet {

class DamagedCommunicator final : public LateCommunicator {
 public:
  // `damaged`: counted from 0, in the order in which they are posted.
  DamagedCommunicator(Communicator& network, int64_t damaged)
      : LateCommunicator(network, /*prompt=*/1 << 20), damaged_(damaged) {}

  Request post(std::span<const Transfer> transfers) override {
    const Request request = LateCommunicator::post(transfers);
    for (const Transfer& t : transfers)
      if (t.kind == Transfer::Kind::kRecv && t.bytes > 0 && posted_++ == damaged_)
        arriving_.emplace_back(request, t);
    return request;
  }
  bool test(Request request) override {
    return LateCommunicator::test(request) && arrived(request);
  }
  void wait(Request request) override {
    LateCommunicator::wait(request);
    arrived(request);
  }

 private:
  bool arrived(Request request) {
    for (const auto& [of, transfer] : arriving_)
      if (of == request) transfer.data[2] ^= std::byte{0x40};  // a bit of an fp32 number's mantissa
    std::erase_if(arriving_, [&](const auto& a) { return a.first == request; });
    return true;
  }

  int64_t damaged_, posted_ = 0;
  std::vector<std::pair<Request, Transfer>> arriving_;
};

}  // namespace longnet
