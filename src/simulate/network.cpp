#include "simulate/network.h"

#include <algorithm>
#include <limits>
#include <map>
#include <span>

#include "core/check.h"
#include "simulate/pool.h"

namespace longnet {

Network::Network(const Topology& topology, int simulated, const Kind& kind)
    : topology_(topology),
      simulated_(simulated),
      kind_(kind),
      channels_of_(size_t(simulated)),
      progresses_(size_t(simulated), true),
      flowing_(size_t(simulated), 0) {}

uint32_t Network::speed_of(const Speed& speed) {
  const auto known = std::ranges::find(speeds_, speed);
  if (known == speeds_.end()) return speeds_.push_back(speed), uint32_t(speeds_.size()) - 1;
  return uint32_t(known - speeds_.begin());
}

uint32_t Network::add_channel(Rank from, Rank to, AlphaSet alpha, double most_bytes_per_s) {
  const Route route = topology_.route(from, to);
  const auto first_link = uint32_t(links_.size());
  double rate = std::numeric_limits<double>::infinity();
  for (const int link : route) {
    rate = std::min(rate, topology_.capacity(link));
    links_.push_back(topology_.representative(link, simulated_));
  }
  if (most_bytes_per_s > 0) rate = std::min(rate, most_bytes_per_s);
  channels_.push_back({.sender = uint32_t(from),
                       .receiver = uint32_t(to % simulated_),
                       .speed = speed_of({.alpha = topology_.alpha_s(route, alpha),
                                          .seconds_per_byte = 1 / rate,
                                          .overhead = topology_.overhead_s(route)}),
                       .first_link = first_link,
                       .num_links = uint16_t(route.count)});
  receivers_.push_back(to);
  return uint32_t(channels_.size()) - 1;
}

// A link that all its channels together cannot fill slows none of them, and is left out.
void Network::seal() {
  std::vector<double> asked(topology_.capacities().size(), 0);
  for (const Channel& c : channels_)
    for (const int link : links_of(c)) asked[size_t(link)] += 1 / speeds_[c.speed].seconds_per_byte;
  // Capacities of share_'s links: one for each rank that may be slow, then the links whose channels
  // may ask for more than their capacity.
  std::vector<double> capacities(is_slowed() ? size_t(simulated_) : 0,
                                 std::numeric_limits<double>::infinity());
  std::vector<int> numbers(asked.size(), -1), links;
  std::map<std::vector<int>, uint32_t> routes;  // links and a speed
  size_t most_links = 0;
  for (size_t i = 0; i < channels_.size(); ++i) {
    Channel& c = channels_[i];
    const size_t first = links.size();
    for (const int link : links_of(c)) {
      const double capacity = topology_.capacity(link);
      if (asked[size_t(link)] <= capacity * kSameRate) continue;
      int& number = numbers[size_t(link)];
      if (number < 0) {
        number = int(capacities.size());
        capacities.push_back(capacity);
      }
      links.push_back(number);
    }
    c.alone = links.size() == first && !kind_.pauses;
    c.timed = c.alone && kind_.alone_is_fast;
    if (is_slowed())
      for (const uint32_t rank : {c.sender, c.receiver}) links.push_back(int(rank));
    c.first_link = uint32_t(first);
    c.num_links = uint16_t(links.size() - first);
    most_links = std::max(most_links, links.size() - first);
    if (c.timed) continue;
    std::vector<int> route(links.begin() + int64_t(first), links.end());
    route.push_back(int(c.speed));
    c.route = routes.try_emplace(std::move(route), uint32_t(routes.size())).first->second;
    if (!kind_.pauses) continue;
    channels_of_[c.sender].push_back(uint32_t(i));
    channels_of_[c.receiver].push_back(uint32_t(i));
  }
  links_ = std::move(links);
  running_.resize(routes.size(), kNoSlot);
  share_ = FairShare(capacities, int(most_links));
}

void Network::post(uint32_t channel, const MessageSide& side, double bytes, bool is_send) {
  Channel& c = channels_[channel];
  if (c.first == kNoSlot || c.holds_sends == is_send) {
    const uint32_t id = take_slot(posted_, free_posted_);
    posted_[id] = {side, bytes, kNoSlot};
    append(posted_, id, c.first, c.last);
    __builtin_prefetch(links_.data() + c.first_link);  // or past the end
    __builtin_prefetch(running_.data() + c.route);
    c.holds_sends = is_send;
    return;
  }
  const Posted other = posted_[c.first];
  free_posted_.push_back(c.first);
  c.first = other.next;
  if (other.bytes != bytes)
    refuse_sizes(channel, is_send ? bytes : other.bytes, is_send ? other.bytes : bytes);
  start(channel, is_send ? side : other.side, is_send ? other.side : side, bytes);
}

void Network::refuse_sizes(uint32_t channel, double sent, double received) const {
  fail_at(
      concat("a message from rank ", channels_[channel].sender, " to rank ", receivers_[channel],
             " has ", sent, " bytes on one side and ", received, " on the other"),
      std::source_location::current());
}

void Network::start(uint32_t channel, const MessageSide& send, const MessageSide& recv,
                    double bytes) {
  ++messages;
  Channel& c = channels_[channel];
  const Speed& speed = speeds_[c.speed];
  const double ready = std::max(send.posted_s, recv.posted_s) + speed.alpha;
  if (c.timed) {
    c.free_at = std::max(ready, c.free_at) + bytes * speed.seconds_per_byte;
    done(send, recv, c.free_at);
    return;
  }
  shared_messages += !c.alone;
  const uint32_t id = take_slot(messages_, free_messages_);
  messages_[id] = {.send = send, .recv = recv, .bytes = bytes, .channel = channel};
  events_.push(ready, EventKind::kLatencyOver, id);
}

void Network::latency_over(uint32_t message, double now) {
  Channel& c = channels_[messages_[message].channel];
  if (c.message == kNoSlot) return begin_flow(message, now);
  append(messages_, message, c.queue_first, c.queue_last);
}

void Network::begin_flow(uint32_t message, double now) {
  const Message& m = messages_[message];
  Channel& c = channels_[m.channel];
  c.message = message;
  c.left = m.bytes;
  if (may_flow(c)) run_flow(m.channel, now);
}

void Network::run_flow(uint32_t channel, double now) {
  Channel& c = channels_[channel];
  c.flows = true;
  uint32_t& running = running_[c.route];
  if (running == kNoSlot) {
    running = share_.start(links_of(c), 1 / speeds_[c.speed].seconds_per_byte);
    if (running == bundles_.size()) bundles_.emplace_back();
    Bundle& b = bundles_[running];
    b.rate = share_.rate(running);
    b.since = now;
    b.served = 0;
  } else {
    share_.add(running);
  }
  Bundle& b = bundles_[running];
  c.left += b.served_at(now);
  insert(b, channel);
  if (b.first == channel) renew_end(running, now);
  count_flowing(Rank(c.sender), 1, now);
  count_flowing(Rank(c.receiver), 1, now);
}

void Network::stop_flow(uint32_t channel, double now) {
  Channel& c = channels_[channel];
  c.flows = false;
  const FairShare::Bundle id = running_[c.route];
  share_.stop(id);
  Bundle& b = bundles_[id];
  const bool was_first = remove(b, channel);
  if (b.first == kNoSlot) {
    ++b.version;  // its end is not known any more
    running_[c.route] = kNoSlot;
  } else if (was_first) {
    renew_end(id, now);
  }
  count_flowing(Rank(c.sender), -1, now);
  count_flowing(Rank(c.receiver), -1, now);
}

void Network::insert(Bundle& b, uint32_t channel) {
  const double end = channels_[channel].left;
  // Most end last.
  uint32_t* at =
      b.last != kNoSlot && channels_[b.last].left <= end ? &channels_[b.last].next : &b.first;
  while (*at != kNoSlot && channels_[*at].left <= end) at = &channels_[*at].next;
  channels_[channel].next = *at;
  if (*at == kNoSlot) b.last = channel;
  *at = channel;
}

// Returns whether it was the first.
bool Network::remove(Bundle& b, uint32_t channel) {
  uint32_t* at = &b.first;
  uint32_t before = kNoSlot;
  while (*at != channel) {
    before = *at;
    at = &channels_[before].next;
  }
  *at = channels_[channel].next;
  if (b.last == channel) b.last = before;
  return before == kNoSlot;
}

// Bytes of the channel's message, which flows.
double Network::left_at(uint32_t channel, double now) const {
  const Channel& c = channels_[channel];
  const Bundle& b = bundles_[running_[c.route]];
  const double left = c.left - b.served_at(now);
  // Less is left by rounding alone.
  return left <= std::max(1e-9 * messages_[c.message].bytes, 1e-14 * c.left) ? 0 : left;
}

void Network::change_flowing(Rank rank, int change, double now) {
  int& count = flowing_[size_t(rank)];
  const bool before = count > 0;
  count += change;
  if (before != (count > 0)) flowing_changed(rank, now);
}

void Network::flow_ends(FairShare::Bundle bundle, uint32_t version, double now) {
  if (bundles_[bundle].version != version) return;
  const uint32_t channel = bundles_[bundle].first;
  stop_flow(channel, now);
  Channel& c = channels_[channel];
  const Message m = messages_[c.message];
  free_messages_.push_back(c.message);
  c.message = kNoSlot;
  if (const uint32_t next = c.queue_first; next != kNoSlot) {
    c.queue_first = messages_[next].next;
    begin_flow(next, now);
  }
  done(m.send, m.recv, now);
}

double Network::first_end(const Bundle& b, double now) const {
  return now + std::max(0.0, channels_[b.first].left - b.served_at(now)) / b.rate;
}

// Another message of the bundle ends first.
void Network::renew_end(FairShare::Bundle bundle, double now) {
  Bundle& b = bundles_[bundle];
  ++b.version;
  b.foretold = false;
  b.end = first_end(b, now);
  if (b.rate > 0) push_end(bundle);
}

void Network::push_end(FairShare::Bundle bundle) {
  Bundle& b = bundles_[bundle];
  b.foretold = true;
  events_.push(b.end, EventKind::kFlowEnds, bundle, b.version);
}

// New ends of bundles that are connected. Only the first ones are events: when they come, the
// others are looked at again.
void Network::foretell(std::span<const FairShare::Bundle> bundles, double now) {
  double first = std::numeric_limits<double>::infinity();
  for (const FairShare::Bundle bundle : bundles) {
    Bundle& b = bundles_[bundle];
    if (const double rate = share_.rate(bundle); rate != b.rate) {
      b.served = b.served_at(now);
      b.since = now;
      b.rate = rate;
      b.end = first_end(b, now);
      b.foretold = false;
      ++b.version;
    }
    first = std::min(first, b.end);
  }
  for (const FairShare::Bundle bundle : bundles)
    if (!bundles_[bundle].foretold && is_same_time(bundles_[bundle].end, first)) push_end(bundle);
}

void Network::settle(double now) {
  share_.update([&](std::span<const FairShare::Bundle> bundles) { foretell(bundles, now); });
}

void Network::set_progress(Rank rank, bool progresses, double now) {
  if (progresses_[size_t(rank)] == progresses) return;
  progresses_[size_t(rank)] = progresses;
  if (is_slowed())
    return share_.set_capacity(rank, progresses ? std::numeric_limits<double>::infinity()
                                                : kind_.bytes_per_s_without_progress);
  for (const uint32_t channel : channels_of_[size_t(rank)]) {
    Channel& c = channels_[channel];
    if (c.message == kNoSlot) continue;
    const bool may = may_flow(c);
    const double left = c.flows ? left_at(channel, now) : c.left;
    if (c.flows && left == 0) continue;  // its end is the next event
    if (may && !c.flows) run_flow(channel, now);
    if (may || !c.flows) continue;
    c.left = left;
    stop_flow(channel, now);
  }
}

}  // namespace longnet
