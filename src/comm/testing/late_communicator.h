// For tests: a program that never waits for its messages, on a network where they come last.
//
//   irecv(0, a) ... wait()  |  attend reads a: what was there before  |  all_max: a arrives
//
// wait() returns at once. What was posted moves at the next operation outside of timed regions.
// Until there were more than `prompt` barriers, runs are as they should be: their messages stay in
// the buffers.
#pragma once
#include <functional>

#include "comm/communicator.h"

namespace longnet {

// Barriers of measure_point for its first run: one before the run and one before the window beside
// it, in which the peak of the cores is measured.
inline constexpr int kBarriersOfTheFirstRun = 2;

class LateCommunicator : public Communicator {
 public:
  LateCommunicator(Communicator& network, int prompt) : network_(network), prompt_(prompt) {}
  Rank rank() const override { return network_.rank(); }
  int size() const override { return network_.size(); }
  std::string_view transport() const override { return network_.transport(); }

  // Counts at once: a figure that differs would show what only the check of the output should.
  Request post(std::span<const Transfer> transfers) override {
    for (const Transfer& t : transfers) counters_.moved(t);
    return later([posted = Transfers(transfers.begin(), transfers.end()), this] {
      return network_.post(posted);
    });
  }
  Request iall_gather(const RankGroup& group, std::span<std::byte> into,
                      std::span<const int64_t> counts) override {
    return later([=, this] { return network_.iall_gather(group, into, counts); });
  }
  Request iall_to_all(const RankGroup& group, std::span<const std::byte> from,
                      std::span<const int64_t> from_counts, std::span<std::byte> into,
                      std::span<const int64_t> into_counts) override {
    return later(
        [=, this] { return network_.iall_to_all(group, from, from_counts, into, into_counts); });
  }
  bool test(Request request) override { return prompt_ >= 0 && network_.test(request); }
  void wait(Request request) override {
    if (prompt_ >= 0) network_.wait(request);
  }
  void abandon() override { network_.abandon(); }

  void barrier() override {
    now().barrier();
    --prompt_;
  }
  void resting_barrier() override { now().resting_barrier(); }
  void open_group(const RankGroup& group) override { now().open_group(group); }
  void all_max(std::span<double> values) override { now().all_max(values); }
  void all_sum(std::span<double> values) override { now().all_sum(values); }
  void broadcast(std::span<std::byte> data, Rank root) override { now().broadcast(data, root); }
  std::vector<std::string> all_texts(const std::string& mine) override {
    return now().all_texts(mine);
  }
  std::unique_ptr<Communicator> first_ranks(int count) override { return now().first_ranks(count); }
  void abort(const std::string& reason) override { network_.abort(reason); }

 private:
  Request later(std::function<Request()> post) {
    if (prompt_ >= 0) return post();
    posts_.push_back(std::move(post));
    return 0;
  }
  Communicator& now() {
    std::vector<Request> requests;
    for (const auto& post : posts_) requests.push_back(post());
    for (const Request r : requests) network_.wait(r);
    posts_.clear();
    return network_;
  }

  Communicator& network_;
  int prompt_;
  std::vector<std::function<Request()>> posts_;
};

}  // namespace longnet
