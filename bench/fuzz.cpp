// Damaged inputs for every parser: files that ship, changed at random from a seed.
//
//   fuzz config --seconds 5              fuzz result --runs 1000000 --seed 7
//
// Each run takes an input of the target's corpus, changes it in one to eight places, and hands it
// over. Fine: UsageError, or a value that survives being written and read again. Everything else
// ends the program with exit code 1: a crash, another exception, ten seconds of work without an end
// (a hundred on the clock: it may wait), more than 2 GiB of memory. The input then stands in
// fuzz-TARGET.input, and `fuzz TARGET --input FILE` runs it again.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <random>
#include <sstream>

#include "core/check.h"
#include "io/filter.h"
#include "io/sha256.h"
#include "io/units.h"
#include "json/json_reader.h"
#include "json/text.h"
#include "run/shard_journal.h"
#include "run/simulate_point.h"
#include "run/sweep.h"
#include "run/walk_point.h"

namespace longnet {
namespace {

namespace fs = std::filesystem;

using Random = std::mt19937_64;
size_t below(Random& random, size_t n) { return n == 0 ? 0 : size_t(random() % n); }

// Tokens that break careless parsers, separated by blanks.
const std::vector<std::string> kHostileTokens = [] {
  std::istringstream words(
      "0 -1 1e308 -1e308 1e-308 9223372036854775807 9223372036854775808 -9223372036854775808 "
      "4294967296 2147483647 1e400 0.1 null true {} [] \"\" \"world\" \"8K\" "
      "\"9223372036854775807B\" \"\\u001b[31m\" \xff \\ // \"extends\":\"x\", , : { [ } ] == && ( "
      "! @ x "
      "%");
  return std::vector<std::string>(std::istream_iterator<std::string>(words), {});
}();

// Replaces the number or word at a random place by another one.
void replace_word(std::string& text, Random& random) {
  const auto in_word = [&](size_t i) {
    return i < text.size() && (std::isalnum(static_cast<unsigned char>(text[i])) != 0 ||
                               text[i] == '.' || text[i] == '-' || text[i] == '_');
  };
  size_t begin = below(random, text.size());
  while (begin < text.size() && !in_word(begin)) ++begin;
  size_t end = begin;
  while (in_word(end)) ++end;
  while (begin > 0 && in_word(begin - 1)) --begin;
  text.replace(begin, end - begin, kHostileTokens[below(random, kHostileTokens.size())]);
}

void mutate(std::string& text, const std::string& other, Random& random) {
  const size_t at = below(random, text.size() + 1);
  const size_t length = std::min(below(random, 64), text.size() - at);
  switch (below(random, 8)) {
    case 0:
      if (at < text.size()) text[at] = char(text[at] ^ (1 << below(random, 8)));
      break;
    case 1:
      text.erase(at, length);
      break;
    case 2:
      text.insert(at, text.substr(at, length));
      break;
    case 3:
      text.insert(at, kHostileTokens[below(random, kHostileTokens.size())]);
      break;
    case 4:
      text.replace(at, length, other.substr(below(random, other.size()), below(random, 200)));
      break;
    case 5:  // deep, or long
      for (size_t i = below(random, 300); i > 0; --i) text.insert(at, length > 32 ? "[" : "(");
      break;
    default:
      replace_word(text, random);
  }
}

// A place for what is parsed from a file.
class Scratch {
 public:
  Scratch() : path_(fs::temp_directory_path() / concat("longnet-fuzz-", ::getpid())) {
    fs::create_directories(path_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  std::string put(const std::string& name, const std::string& text) const {
    const std::string path = (path_ / name).string();
    fs::remove(path);
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  std::string folder() const { return path_.string(); }

 private:
  fs::path path_;
};

std::vector<std::string> texts_in(const fs::path& folder, const std::string& extension) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.path().extension() == extension && fs::file_size(entry.path()) < 100000)
      paths.push_back(entry.path());
  std::ranges::sort(paths);
  std::vector<std::string> texts;
  for (const fs::path& path : paths) texts.push_back(read_file_text(path.string(), ""));
  return texts;
}

struct Target {
  std::string name;
  std::vector<std::string> corpus;
  std::function<void(const std::string& text, int64_t run)> parse;
};

void require_same(const std::string& a, const std::string& b) {
  if (a != b) throw Error(concat("what was written reads as something else:\n", a, "\n", b));
}

void parse_one_config(const std::string& text, int64_t run) {
  const KnownNames known = known_names();
  const Config config = parse_config(text, "fuzz.json", {.overrides = {}, .known = known});
  const std::string resolved = resolved_config_json(config);
  require_same(resolved, resolved_config_json(parse_config(resolved, "fuzz.json", {{}, known})));
  if (run % 8 != 0) return;
  const std::vector<Point> points = read_points(config, {.world_size = 2, .mode = config.run.mode});
  plan_point(points[size_t(run / 8) % points.size()], machine_limits(config, 1e11), 1, 2);
}

void parse_one_cluster(const std::string& text, const Config& config, int64_t run) {
  const ClusterSpec cluster = parse_cluster(text, "fuzz.json");
  const std::string written = cluster_to_json(cluster);
  require_same(written, cluster_to_json(parse_cluster(written, "fuzz.json")));
  const std::string what_if = run % 3 == 0 ? "bandwidth=0.5,nodes=64" : "";
  SimulatePoint how{.cluster = cluster, .what_if = parse_what_if(what_if)};
  how.cluster = apply(cluster, how.what_if);
  for (const Point& point : on_cluster(read_points(config, {.mode = Mode::kSimulated}), how))
    simulate_point(point, how);
}

void parse_one_result(const std::string& text, const Scratch& scratch) {
  const std::string written = result_to_json(read_result(scratch.put("result.json", text)));
  require_same(written, result_to_json(read_result(scratch.put("result.json", written))));
}

// A line that was changed passes no seal: every second run sets them anew.
std::string sealed_again(const std::string& text) {
  std::string lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    if (seal_holds(line)) line = line.substr(0, line.rfind(",\"sha256\"")) + "}";
    lines += (line.empty() ? line : sealed(line)) + "\n";
    begin = end + 1;
  }
  return lines;
}

void parse_one_journal(const std::string& text, const Scratch& scratch, int64_t run) {
  const std::string lines = run % 2 == 0 ? text : sealed_again(text);
  if (lines.find("\"walk\"") == std::string::npos) {
    scratch.put("points.jsonl", lines);
    const Result result = read_result(scratch.folder());
    ResultWriter::resume(scratch.folder(), result, /*allow_changed_machine=*/true);
    return;
  }
  const std::string path = scratch.put("shards.jsonl", lines);
  const double share = ShardJournal::share_of(path, 1);
  const size_t before = ShardJournal(path, "fuzz", "plan", share).lines().size();
  if (ShardJournal(path, "fuzz", "plan", share).lines().size() != before)
    throw Error("a journal lost lines when it was opened");
}

void parse_one_filter(const std::string& text, const std::vector<Point>& points) {
  const Filter filter = parse_filter(text, known_names());
  for (const Point& point : points) filter(point);
}

void parse_one_word(const std::string& text) {
  if (const auto tokens = try_parse_tokens(text))
    require_same(concat(*tokens), concat(*try_parse_tokens(format_tokens(*tokens))));
  if (const auto bytes = try_parse_bytes(text)) format_bytes(double(*bytes));
  closest_match(text, filter_keys());
  for (const auto& parse : std::initializer_list<std::function<void()>>{
           [&] { format_seconds(parse_duration(text)); }, [&] { parse_fraction(text); },
           [&] { parse_ranks(text); }, [&] { parse_what_if(parse_what_if(text).text()); }}) {
    try {
      parse();
    } catch (const UsageError&) {  // the next may take it
    }
  }
}

constexpr const char* kSmallConfig = R"({"schema_version": 1,
  "model": {"dtype": "bf16", "heads": 4, "head_dim": 64}, "dilated": {"segments": [256, "sequence"]},
  "sweep": {"algorithm": ["dilated", "ring", "ulysses"], "seq_len": "4K", "ranks": [1, 4]}})";

std::string text_of(const std::vector<ShardLine>& lines, const Scratch& scratch) {
  const std::string path = scratch.put("made.jsonl", "");
  {
    ShardJournal journal(path, "fuzz", "plan", 0.5);
    for (const ShardLine& line : lines) journal.append(line);
  }
  return read_file_text(path, "");
}

Target make_target(const std::string& name, const Scratch& scratch) {
  const fs::path source = LONGNET_SOURCE_DIR;
  const Config small = parse_config(kSmallConfig, "small.json", {{}, known_names()});
  const std::vector<Point> points = read_points(small, {.world_size = 4});
  if (name == "config") return {name, texts_in(source / "configs", ".json"), parse_one_config};
  if (name == "cluster")
    return {name, texts_in(source / "configs/clusters", ".json"),
            [small](const std::string& text, int64_t run) { parse_one_cluster(text, small, run); }};
  if (name == "filter")
    return {name,
            {"algorithm==dilated && seq_len<=1M", "!(causal || ranks > 4) && id != '9c41d07b'",
             "dtype == \"bf16\" && heads >= 1.5", "(((batch < 2)))"},
            [points](const std::string& text, int64_t) { parse_one_filter(text, points); }};
  if (name == "tokens")
    return {name,
            {"8K", "1B", "12.5 GiB", "90s", "1.5h", "5%", "0,17,4095", "9223372036854775807",
             "bandwidth=0.5,taper=2,straggler=0.2@17,kernel=fa3", "straggler=0.2x8,nodes=1024"},
            [](const std::string& text, int64_t) { parse_one_word(text); }};
  Result head{.run = {.name = "fuzz", .config_sha256 = config_sha256(small), .planned = 6}};
  head.run.config = parse_json(resolved_config_json(small), "config");
  head.path = scratch.folder() + "/run";
  ResultWriter writer = ResultWriter::create(head);
  for (const Point& point : points) {
    PointRecord record = make_record(point);
    set_timing(record, {0.25, 0.5, 0.125}, 1);
    record.timeline = {{0, "compute", "attend", 0, 1, "branch 1"}};
    writer.append(record);
  }
  writer.finish(6);
  const std::string folder = writer.directory() + "/";
  if (name == "result") {
    Target target{
        name, texts_in(source / "results", ".json"),
        [&scratch](const std::string& text, int64_t) { parse_one_result(text, scratch); }};
    target.corpus.push_back(read_file_text(folder + "result.json", ""));
    return target;
  }
  if (name != "journal") throw UsageError(concat("no target is named '", name, "'"));
  scratch.put("run.json", read_file_text(folder + "run.json", ""));
  ShardLine line;
  line.finished_utc = "2026-01-01T00:00:00Z";
  line.seconds["attend"] = 0.5;
  line.heads = {{.rows = 7, .sum = 0.5}};
  Target target{
      name,
      {read_file_text(folder + "points.jsonl", ""), text_of({line, line}, scratch)},
      [&scratch](const std::string& text, int64_t run) { parse_one_journal(text, scratch, run); }};
  for (const std::string& text : texts_in(source / "results", ".jsonl"))
    if (text.find("\"walk\"") != std::string::npos) target.corpus.push_back(text);
  return target;
}

// The input at work, for the handler of signals.
std::string input_at_work, input_file;

void keep_input() {
  const int fd = ::open(input_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (fd < 0 || ::write(fd, input_at_work.data(), input_at_work.size()) < 0) return;
  ::close(fd);
}

void die(int signal) {
  static constexpr char kText[] = "fuzz: a crash, or no end within ten seconds\n";
  if (::write(STDERR_FILENO, kText, sizeof kText - 1) >= 0) keep_input();
  std::signal(signal, SIG_DFL);
  ::_exit(1);
}

void set_limits() {
  static std::array<char, 65536> stack;  // a handler needs one where the own has overflowed
  const stack_t other{.ss_sp = stack.data(), .ss_flags = 0, .ss_size = stack.size()};
  ::sigaltstack(&other, nullptr);
  struct sigaction action {};
  action.sa_handler = die;
  action.sa_flags = SA_ONSTACK;
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM, SIGPROF})
    ::sigaction(signal, &action, nullptr);
#if !defined(__SANITIZE_ADDRESS__)
  const rlimit memory{rlim_t{2} << 30, rlim_t{2} << 30};
  ::setrlimit(RLIMIT_AS, &memory);
#endif
}

// Signals after so many seconds of the program's own work, while others may have the cores, and
// after so many on the clock; 0: none.
void set_alarms(int work_s, unsigned clock_s) {
  const itimerval work{.it_interval = {}, .it_value = {.tv_sec = work_s, .tv_usec = 0}};
  ::setitimer(ITIMER_PROF, &work, nullptr);
  ::alarm(clock_s);
}

// False: neither refused nor understood.
bool survives(const Target& target, int64_t run, int64_t& accepted) {
  set_alarms(10, 100);
  try {
    target.parse(input_at_work, run);
    ++accepted;
  } catch (const UsageError&) {
  } catch (const std::exception& e) {
    std::cerr << concat("fuzz: ", e.what(), "\n");
    keep_input();
    return false;
  }
  set_alarms(0, 0);
  return true;
}

struct FuzzOptions {
  std::string target, input;
  double seconds = std::numeric_limits<double>::infinity();
  int64_t runs = std::numeric_limits<int64_t>::max();
  uint64_t seed = 1;
};

int fuzz(const FuzzOptions& o) {
  const Scratch scratch;
  const Target target = make_target(o.target, scratch);
  input_file = concat("fuzz-", o.target, ".input");
  set_limits();
  int64_t accepted = 0, run = 0;
  if (!o.input.empty()) {
    input_at_work = read_file_text(o.input, "");
    for (; run < 24; ++run)
      if (!survives(target, run, accepted)) return 1;
    return 0;
  }
  for (const std::string& whole : target.corpus) {  // shipped files are undamaged
    input_at_work = whole;
    if (!survives(target, 1, accepted)) return 1;
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  for (accepted = 0; run < o.runs && elapsed() < o.seconds; ++run) {
    Random random(o.seed * 0x9E3779B97F4A7C15u + uint64_t(run));
    input_at_work = target.corpus[below(random, target.corpus.size())];
    const std::string& other = target.corpus[below(random, target.corpus.size())];
    for (size_t changes = 1 + below(random, 8); changes > 0; --changes)
      mutate(input_at_work, other, random);
    if (survives(target, run, accepted)) continue;
    std::cerr << concat("fuzz: ", o.target, ", run ", run, " of seed ", o.seed, "\n");
    return 1;
  }
  std::cout << concat(o.target, ": ", run, " inputs, ", accepted, " accepted, none broke it, ",
                      std::lround(elapsed()), " s\n");
  return 0;
}

}  // namespace
}  // namespace longnet

int main(int argc, char** argv) {
  using namespace longnet;
  FuzzOptions o;
  if (argc > 1) o.target = argv[1];
  try {
    for (int i = 2; i + 1 < argc; i += 2) {
      const std::string name = argv[i], value = argv[i + 1];
      if (name == "--seconds") o.seconds = std::stod(value);
      if (name == "--runs") o.runs = std::stoll(value);
      if (name == "--seed") o.seed = std::stoull(value);
      if (name == "--input") o.input = value;
    }
    return fuzz(o);
  } catch (const std::exception& e) {
    std::cerr << "error: " << e.what() << "\n";
    return 2;
  }
}
