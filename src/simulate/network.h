// The messages of a simulation: matched in order, delayed by latency, slowed by each other.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "simulate/event_queue.h"
#include "simulate/fair_share.h"
#include "simulate/topology.h"

namespace longnet {

// One side of a message: op `index` of the communication lane of simulated rank `rank`.
struct MessageSide {
  uint32_t rank, index;
  double posted_s;
};

class Network {
 public:
  struct Kind {
    bool alone_is_fast;  // messages that nobody else can slow are timed without events
    bool pauses;         // set_progress will be called
    // Bytes per second of all messages together of a rank that does not progress them; 0: none.
    double bytes_per_s_without_progress = 0;
  };
  // `simulated` ranks stand for all.
  Network(const Topology& topology, int simulated, const Kind& kind);

  // A channel from a simulated rank to any rank, of so many bytes per second at most (0: no limit);
  // before the first post. Its number.
  uint32_t add_channel(Rank from, Rank to, AlphaSet alpha, double most_bytes_per_s);
  void seal();  // after the last channel: finds those that nobody else can slow
  // One side of a message; it starts when the other one is there.
  void post(uint32_t channel, const MessageSide& side, double bytes, bool is_send);
  // More channels than the nearest cache holds. expect() has one of them read into it.
  bool is_large() const { return channels_.size() > 512; }
  void expect(uint32_t channel) const { __builtin_prefetch(&channels_[channel], 1); }
  double overhead_s(uint32_t channel) const { return speeds_[channels_[channel].speed].overhead; }

  // Time-ordered part; the engine puts its own events into the same queue.
  void latency_over(uint32_t message, double now);
  void flow_ends(FairShare::Bundle bundle, uint32_t version, double now);
  void settle(double now);  // new rates, before the clock moves on

  // A rank that computes and cannot progress its messages meanwhile, or that can again.
  void set_progress(Rank rank, bool progresses, double now);
  // Counts traffic of the rank that is no message of this network: a collective by formula.
  void count_flowing(Rank rank, int change, double now) {
    if (flowing_changed) change_flowing(rank, change, now);
  }
  int flowing(Rank rank) const { return flowing_[size_t(rank)]; }

  EventQueue& events() { return events_; }
  // Called when a message is over, at `end_s`.
  std::function<void(const MessageSide& send, const MessageSide& recv, double end_s)> done;
  std::function<void(Rank rank, double now)> flowing_changed;  // 0 <-> 1 flows of a rank; optional
  int64_t messages = 0, shared_messages = 0;

 private:
  // Latency, time per byte and overhead, which channels of one kind have in common.
  struct Speed {
    double alpha, seconds_per_byte, overhead;
    bool operator==(const Speed&) const = default;
  };
  // In one line of the cache: most channels carry few messages, with many others between them.
  struct alignas(64) Channel {
    uint32_t sender, receiver;  // a simulated rank, and the twin of any
    uint32_t speed;             // in speeds_
    uint32_t first_link = 0;    // in links_: those that can slow it
    uint16_t num_links = 0;
    bool holds_sends = false;
    bool alone : 1 = false;                    // nobody else can slow its messages
    bool timed : 1 = false;                    // alone, and no event is needed to know their ends
    bool flows : 1 = false;                    // its message does
    uint32_t first = kNoSlot, last = kNoSlot;  // posted sides without a partner
    uint32_t queue_first = kNoSlot, queue_last = kNoSlot;  // messages whose latency is over
    uint32_t message = kNoSlot;  // the one that has the channel: it flows, but for pauses
    uint32_t route = 0;          // in running_: channels of one have links and speed in common
    uint32_t next = kNoSlot;     // in its bundle, while the message flows
    double left = 0;             // its bytes; while it flows, the bundle's `served` as it ends
    double free_at = 0;          // when the message before is over
  };
  static_assert(sizeof(Channel) == 64);
  // Messages that flow over one route, and so at one rate, in the order of their ends: counts the
  // bytes that each of them has been served since the bundle began. The version counts the ends
  // that have been foretold, of the first message; only the last one is true.
  struct alignas(64) Bundle {
    uint32_t version = 0;
    bool foretold = false;
    uint32_t first = kNoSlot, last = kNoSlot;  // channels
    double rate = 0, since = 0, end = 0;
    double served = 0;  // bytes, at `since`
    double served_at(double now) const { return served + rate * (now - since); }
  };
  struct Posted {
    MessageSide side;
    double bytes;
    uint32_t next;
  };
  struct Message {
    MessageSide send, recv;
    double bytes;
    uint32_t channel, next = kNoSlot;
  };

  // Inline: called for each message, by network.cpp alone.
  [[noreturn]] void refuse_sizes(uint32_t channel, double sent, double received) const;
  void change_flowing(Rank rank, int change, double now);
  inline void start(uint32_t channel, const MessageSide& send, const MessageSide& recv,
                    double bytes);
  inline void begin_flow(uint32_t message, double now);
  inline void run_flow(uint32_t channel, double now);
  double left_at(uint32_t channel, double now) const;
  inline void stop_flow(uint32_t channel, double now);
  inline void insert(Bundle& bundle, uint32_t channel);
  inline bool remove(Bundle& bundle, uint32_t channel);
  inline double first_end(const Bundle& bundle, double now) const;
  inline void renew_end(FairShare::Bundle bundle, double now);
  void foretell(std::span<const FairShare::Bundle> bundles, double now);
  inline void push_end(FairShare::Bundle bundle);
  uint32_t speed_of(const Speed& speed);
  std::span<const int> links_of(const Channel& c) const {
    return std::span(links_).subspan(c.first_link, c.num_links);
  }
  bool is_slowed() const { return kind_.bytes_per_s_without_progress > 0; }
  bool may_flow(const Channel& c) const {
    return !kind_.pauses || is_slowed() || (progresses_[c.sender] && progresses_[c.receiver]);
  }

  const Topology& topology_;
  int simulated_;
  Kind kind_;
  std::vector<Speed> speeds_;
  std::vector<Channel> channels_;
  std::vector<Rank> receivers_;    // by channel, as the schedule names them
  std::vector<int> links_;         // routes of the channels, one after another
  std::vector<uint32_t> running_;  // by route: its bundle, while there is one
  std::vector<Bundle> bundles_;    // by their number in share_
  std::vector<Posted> posted_;
  std::vector<Message> messages_;
  std::vector<uint32_t> free_posted_, free_messages_;
  std::vector<std::vector<uint32_t>> channels_of_;  // by simulated rank, where flows may pause
  std::vector<bool> progresses_;
  std::vector<int> flowing_;
  FairShare share_{{}, 0};
  EventQueue events_;
};

}  // namespace longnet
