#include "io/result.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>

#include "core/testing/test_support.h"
#include "io/axes.h"
#include "io/compare.h"
#include "io/config.h"
#include "io/expand.h"
#include "io/field.h"
#include "io/sha256.h"
#include "json/json_reader.h"
#include "json/json_tree.h"

namespace longnet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kConfig = R"({ "schema_version": 1, "name": "demo",
  "sweep": { "algorithm": ["dilated", "ring"], "seq_len": ["8K", "16K", "32K"], "ranks": 2 } })";

std::vector<Point> points() { return expand(parse_config(kConfig, "demo.json")); }

PointRecord ok_record(const Point& p, double median) {
  PointRecord r = make_record(p);
  r.params.threads = 1;
  set_timing(r, std::vector<double>(10, median), 3);
  return r;
}

Result head() {
  const Config c = parse_config(kConfig, "demo.json");
  Result o;
  o.run = {.name = c.name,
           .command = "lnbench run demo.json",
           .config_path = "demo.json",
           .config_sha256 = config_sha256(c),
           .transport = "threads",
           .world_size = 2,
           .planned = 6,
           .config = parse_json(resolved_config_json(c), "config")};
  o.environment = capture_environment({.mpi_version = "Open MPI 4.1.4"});
  o.ranks = {{.rank = 0, .hostname = "a", .cores = 1},
             {.rank = 1, .hostname = "b", .cores = 1, .device = "gpu 0"}};
  return o;
}

TEST(ResultWriter, WritesManifestLinesAndResult) {
  const TemporaryFolder folder;
  auto writer = ResultWriter::create(head(), folder.path("results"));
  EXPECT_THAT(writer.directory(),
              testing::MatchesRegex(".*/results/[0-9]{8}T[0-9]{6}Z-demo-[^/]+"));
  EXPECT_TRUE(std::filesystem::exists(writer.directory() + "/run.json"));
  for (const Point& p : points()) {
    const double n = double(p.params.problem.seq_len);
    writer.append(ok_record(p, p.params.algorithm == "ring" ? 1e-9 * n * n : 1e-6 * n));
  }
  EXPECT_FALSE(std::filesystem::exists(writer.directory() + "/result.json"));
  const Summary s = writer.finish(6);
  EXPECT_EQ(s.verdict, "pass");
  EXPECT_EQ(s.counts.at("ok"), 6);
  EXPECT_EQ(s.counts.at("timeout"), 0);
  ASSERT_EQ(s.fits.size(), 2u);
  EXPECT_NEAR(s.fits[0].exponent, 1, 1e-9);
  EXPECT_NEAR(s.fits[1].exponent, 2, 1e-9);
  EXPECT_FALSE(std::filesystem::exists(writer.directory() + "/result.json.tmp"));

  const Result r = read_result(writer.directory());
  EXPECT_EQ(r.points.size(), 6u);
  EXPECT_EQ(r.run.name, "demo");
  EXPECT_EQ(r.run.world_size, 2);
  EXPECT_EQ(r.ranks[1].device, "gpu 0");
  EXPECT_EQ(r.environment.mpi_version, "Open MPI 4.1.4");
  EXPECT_EQ(r.summary.fits.size(), 2u);
  EXPECT_EQ(result_to_json(read_result(writer.directory() + "/result.json")), result_to_json(r));
  const JsonNode n = parse_json(result_to_json(r), "r");
  EXPECT_THAT(n.keys, ElementsAre("schema_version", "run", "build", "environment", "ranks",
                                  "points", "summary"));
  // The config inside the result is the resolved one, whose hash is the one beside it.
  EXPECT_EQ(config_sha256(parse_config(dump_json(r.run.config), "x.json")), r.run.config_sha256);
}

std::vector<double> timeline_ends(const std::string& path) {  // 0: the point has no timeline
  std::vector<double> ends;
  for (const PointRecord& p : read_result(path).points)
    ends.push_back(p.timeline.empty() ? 0 : p.timeline[0].end_s);
  return ends;
}

TEST(ResultWriter, WritesALineForEachPointAndTimelinesApart) {
  const TemporaryFolder folder;
  auto writer = ResultWriter::create(head(), folder.path("results"));
  const std::string directory = writer.directory();
  const auto all = points();
  for (int i = 0; i < 3; ++i) {
    PointRecord r = ok_record(all[size_t(i)], 1);
    if (i > 0) r.timeline = {{0, "compute", "attend", 0, 0.25 * i}};
    writer.append(r);
  }
  writer.finish(3);
  const std::string text = read_file_text(directory + "/result.json", "");
  EXPECT_EQ(text.find("timeline"), std::string::npos);
  for (int i = 0; i < 3; ++i)
    EXPECT_THAT(text, HasSubstr(concat("\n  {\"id\":\"", all[size_t(i)].id, "\",")));
  EXPECT_THAT(text, HasSubstr("}\n ],\n \"summary\": {\n  \"verdict\": \"incomplete\",\n"));
  const std::string timelines = read_file_text(directory + "/timelines.jsonl", "");
  EXPECT_EQ(std::ranges::count(timelines, '\n'), 2);
  EXPECT_TRUE(timelines.starts_with(concat("{\"id\":\"", all[1].id, "\",\"timeline\":[{")));

  for (const char* name : {"run.json", "points.jsonl"})  // as published
    std::filesystem::remove(directory + "/" + name);
  EXPECT_THAT(timeline_ends(directory), ElementsAre(0, 0.25, 0.5));
  EXPECT_THAT(timeline_ends(directory + "/result.json"), ElementsAre(0, 0.25, 0.5));
}

TEST(ResultWriter, TimelinesOfPointsMeasuredAgainGo) {
  const TemporaryFolder folder;
  auto writer = ResultWriter::create(head(), folder.path("results"));
  PointRecord r = ok_record(points()[0], 1);
  r.timeline = {{0, "compute", "attend", 0, 1}};
  writer.append(r);
  writer.finish(1);
  r.timeline.clear();
  writer.append(r);
  writer.finish(1);
  EXPECT_FALSE(std::filesystem::exists(writer.directory() + "/timelines.jsonl"));
}

TEST(ReadResult, TakesTimelinesThatStandInTheResult) {  // as those of older results do
  const TemporaryFolder folder;
  auto writer = ResultWriter::create(head(), folder.path("results"));
  PointRecord r = ok_record(points()[0], 1);
  r.timeline = {{0, "compute", "attend", 0, 1}};
  writer.append(r);
  writer.finish(1);
  JsonNode n = parse_json(read_file_text(writer.directory() + "/result.json", ""), "r");
  n.find("points")->items[0] = parse_json(record_to_json(r), "p");
  EXPECT_THAT(timeline_ends(folder.write("result.json", dump_json(n, 1))), ElementsAre(1));
}

TEST(ResultWriter, ASimulatedRunKeepsItsCluster) {
  const TemporaryFolder folder;
  Result options = head();
  options.run.cluster =
      parse_json(R"({"name": "two nodes", "nodes": {"value": 2, "source": "chosen"}})", "c");
  options.run.cluster_sha256 = std::string(64, 'a');
  auto writer = ResultWriter::create(options, folder.path("results"));
  writer.append(ok_record(points()[0], 1));
  writer.finish(1);
  const Result r = read_result(writer.directory());
  EXPECT_EQ(r.run.cluster.text("name"), "two nodes");
  EXPECT_EQ(r.run.cluster_sha256, options.run.cluster_sha256);
}

TEST(ReadResult, OldRunsNameTheirModeAsTransport) {
  const TemporaryFolder folder;
  const auto run_of = [&](const std::string& run) {
    folder.write("run.json", concat(R"({"schema_version": 1, "run": )", run, "}"));
    return read_result(folder.path()).run;
  };
  EXPECT_EQ(run_of(R"({"transport": "virtual"})").mode, "virtual");
  EXPECT_EQ(run_of(R"({"transport": "virtual"})").transport, "");
  EXPECT_EQ(run_of(R"({"transport": "mpi"})").mode, "real");
  EXPECT_EQ(run_of(R"({"transport": null, "mode": "simulated"})").mode, "simulated");
}

TEST(ResultWriter, ResumesAfterATornLine) {
  const TemporaryFolder folder;
  const auto all = points();
  std::string directory;
  const Result options = head();
  {
    auto writer = ResultWriter::create(options, folder.path("results"));
    directory = writer.directory();
    writer.append(ok_record(all[0], 1));
    writer.append(ok_record(all[1], 1));
    PointRecord broken = make_record(all[2]);
    broken.status = PointStatus::kError;
    broken.reason = "node died";
    writer.append(broken);
  }
  {
    std::ofstream lines(directory + "/points.jsonl", std::ios::app);
    lines << record_to_json(ok_record(all[3], 1)).substr(0, 100);  // killed while writing
  }
  EXPECT_EQ(read_result(directory).points.size(), 3u);
  EXPECT_EQ(read_result(directory).summary.verdict, "fail");
  auto writer = ResultWriter::resume(directory, options);
  EXPECT_TRUE(writer.finished(all[0].id) && writer.finished(all[1].id));
  EXPECT_FALSE(writer.finished(all[2].id));  // errors are tried again
  EXPECT_FALSE(writer.finished(all[3].id));
  EXPECT_EQ(writer.finish(6).verdict, "fail");
  for (size_t i = 2; i < all.size(); ++i) writer.append(ok_record(all[i], 1));
  EXPECT_EQ(writer.finish(6).verdict, "pass");
  const Result r = read_result(directory);
  ASSERT_EQ(r.points.size(), 6u);
  EXPECT_EQ(r.points[2].id, all[2].id);                 // in its old place, with the new outcome
  std::filesystem::remove(directory + "/result.json");  // the lines alone say the same
  EXPECT_EQ(read_result(directory).points.size(), 6u);
  EXPECT_EQ(r.points[2].status, PointStatus::kOk);
}

TEST(ResultWriter, ResumeRefusesWhatIsNotItsOwn) {
  const TemporaryFolder folder;
  const std::string directory = ResultWriter::create(head(), folder.path("results")).directory();
  Result now = head();
  now.run.config_sha256 = std::string(64, '0');
  EXPECT_THAT(usage_error([&] { ResultWriter::resume(directory, now, true); }),
              HasSubstr("started with another config"));
  EXPECT_THAT(usage_error([&] { ResultWriter::resume(folder.path("none"), now); }),
              HasSubstr("holds no run.json"));
}

// The error of reading points.jsonl after `change` of two records' text, the last one whole.
std::string refusal_after(const std::function<void(std::string&)>& change) {
  const TemporaryFolder folder;
  std::string directory;
  {
    auto writer = ResultWriter::create(head(), folder.path("results"));
    directory = writer.directory();
    for (int i : {0, 1}) writer.append(ok_record(points()[size_t(i)], 0.25));
  }
  std::string text = read_file_text(directory + "/points.jsonl", "");
  change(text);
  std::ofstream(directory + "/points.jsonl") << text;
  return usage_error([&] { ResultWriter::resume(directory, head()); });
}

TEST(ResultWriter, ResumeRefusesLinesThatWereChanged) {
  EXPECT_EQ(refusal_after([](std::string&) {}), "");
  EXPECT_EQ(refusal_after([](std::string& text) { text.pop_back(); }), "");  // torn: measured again
  const auto edit = [](size_t at, std::string& text) { text.replace(at, 4, "0.20"); };
  EXPECT_THAT(refusal_after([&](std::string& text) { edit(text.find("0.25"), text); }),
              HasSubstr("damaged line 1 of points.jsonl"));
  EXPECT_THAT(refusal_after([&](std::string& text) { edit(text.rfind("0.25"), text); }),
              HasSubstr("damaged line 2 of points.jsonl"));
  const auto reseal = [](std::string& text, const std::string& id) {
    PointRecord r = ok_record(points()[0], 0.25);
    r.id = id;
    text = sealed(record_to_json(r)) + "\n" + text;
  };
  EXPECT_THAT(refusal_after([&](std::string& text) { reseal(text, points()[1].id); }),
              HasSubstr("is not that of its params"));
  EXPECT_THAT(refusal_after([](std::string& text) {
                text = record_to_json(ok_record(points()[0], 0.25)) + "\n" + text;
              }),
              HasSubstr("changed after it was written, or an older build"));
}

TEST(ResultWriter, ResumeRefusesAChangedManifest) {
  const TemporaryFolder folder;
  const std::string directory = ResultWriter::create(head(), folder.path("results")).directory();
  std::string text = read_file_text(directory + "/run.json", "");
  const std::string wanted = "\"warmup\": ";
  text.insert(text.find(wanted) + wanted.size(), "1");
  std::ofstream(directory + "/run.json") << text;
  EXPECT_THAT(usage_error([&] { ResultWriter::resume(directory, head()); }),
              HasSubstr("run.json' is damaged"));
}

TEST(ResultWriter, AFolderHasOneRun) {
  const TemporaryFolder folder;
  std::string directory;
  std::unique_ptr<DurableFile> left_over;
  {
    auto writer = ResultWriter::create(head(), folder.path("results"));
    directory = writer.directory();
    EXPECT_THAT(usage_error([&] { ResultWriter::resume(directory, head()); }), HasSubstr("in use"));
    writer.lock(/*alone=*/false);
    left_over = join_run(directory);
    ResultWriter::resume(directory, head(), true, /*alone=*/false);  // a rank that broke
    EXPECT_THAT(usage_error([&] { ResultWriter::resume(directory, head()); }), HasSubstr("in use"));
  }
  EXPECT_THAT(usage_error([&] { ResultWriter::resume(directory, head()); }),
              HasSubstr("left over"));
  left_over.reset();
  EXPECT_EQ(usage_error([&] { ResultWriter::resume(directory, head()); }), "");
}

TEST(ResultWriter, FollowsNoLinks) {
  const TemporaryFolder folder;
  const std::string directory = ResultWriter::create(head(), folder.path("results")).directory();
  const std::string target = folder.write("elsewhere", "");
  std::filesystem::remove(directory + "/points.jsonl");
  std::filesystem::create_symlink(target, directory + "/points.jsonl");
  EXPECT_THROW(ResultWriter::resume(directory, head()), Error);
}

TEST(DurableFile, AFullDiskLeavesNoHalfLine) {
  const TemporaryFolder folder;
  const std::string path = folder.path("lines");
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  DurableFile file(path, O_WRONLY | O_CREAT | O_APPEND);
  file.write_all("first\n");
  rlimit small = old;
  small.rlim_cur = 10;
  setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_THROW(file.write_all("second\n"), Error);
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(read_file_text(path, ""), "first\n");
}

TEST(ResultWriter, ResumeRefusesAnotherMachineUnlessAllowed) {
  const TemporaryFolder folder;
  const Result options = head();
  const std::string directory = ResultWriter::create(options, folder.path("results")).directory();
  const auto refusal = [&](auto change) {
    Result now = options;
    change(now);
    return usage_error([&] { ResultWriter::resume(directory, now); });
  };
  EXPECT_EQ(refusal([](Result&) {}), "");
  EXPECT_EQ(refusal([](Result& o) { o.environment.hostname = ""; }), "");  // not known
  EXPECT_THAT(refusal([](Result& o) { o.run.transport = "mpi"; }),
              HasSubstr("transport: threads, now mpi"));
  EXPECT_THAT(refusal([](Result& o) { o.run.world_size = 4; }), HasSubstr("world size: 2, now 4"));
  EXPECT_THAT(refusal([](Result& o) { o.build.revision = "0123456789"; }),
              HasSubstr(", now 0123456789"));
  const auto elsewhere = [](Result& o) { o.environment.hostname = "elsewhere"; };
  EXPECT_THAT(refusal(elsewhere), HasSubstr(", now elsewhere"));
  EXPECT_THAT(refusal(elsewhere), HasSubstr("hint: launch it as before"));
  EXPECT_TRUE(read_result(directory).run.resumed.empty());

  Result now = options;
  elsewhere(now);
  ResultWriter::resume(directory, now, true).finish(6);
  const Result r = read_result(directory);  // the change is on record
  ASSERT_EQ(r.run.resumed.size(), 1u);
  EXPECT_THAT(r.run.resumed[0], testing::EndsWith(", now elsewhere"));
}

TEST(ResultWriter, AnotherFilterDoesNotMakeARunComplete) {
  const TemporaryFolder folder;
  const Result options = head();
  const auto all = points();
  const std::string directory = ResultWriter::create(options, folder.path("results")).directory();
  EXPECT_EQ(read_result(directory).run.planned, 6);
  EXPECT_EQ(read_result(directory).summary.planned, 6);
  EXPECT_EQ(read_result(directory).summary.verdict, "incomplete");
  Result part = options;
  part.run.filter = "algorithm == ring";
  part.run.planned = 3;
  {
    auto writer = ResultWriter::resume(directory, part);
    for (size_t i = 3; i < 6; ++i) writer.append(ok_record(all[i], 1));
    const Summary s = writer.finish(3);
    EXPECT_EQ(s.verdict, "incomplete");
    EXPECT_EQ(s.planned, 6);
  }
  EXPECT_THAT(read_result(directory).run.resumed[0], HasSubstr("now 'algorithm == ring'"));
  auto writer = ResultWriter::resume(directory, options);
  for (size_t i = 0; i < 3; ++i) writer.append(ok_record(all[i], 1));
  EXPECT_EQ(writer.finish(6).verdict, "pass");
}

TEST(ResultWriter, ALongerPlanReplacesAShorterOne) {
  const TemporaryFolder folder;
  Result part = head();
  part.run.filter = "algorithm == ring";
  part.run.planned = 3;
  const std::string directory = ResultWriter::create(part, folder.path("results")).directory();
  auto writer = ResultWriter::resume(directory, head());
  writer.append(ok_record(points()[0], 1));
  EXPECT_EQ(writer.finish(6).planned, 6);
  EXPECT_EQ(read_result(directory).run.planned, 6);
  EXPECT_EQ(read_result(directory).run.filter, "algorithm == ring");
}

TEST(ResultWriter, NeverOverwrites) {
  const TemporaryFolder folder;
  Result o = head();
  auto first = ResultWriter::create(o, folder.path("results"));
  auto second = ResultWriter::create(o, folder.path("results"));  // within the same second
  EXPECT_NE(first.directory(), second.directory());
  o.path = first.directory();
  EXPECT_THAT(usage_error([&] { ResultWriter::create(o, folder.path("results")); }),
              HasSubstr("is not empty"));
  o.path = folder.path("fresh/deep");
  EXPECT_EQ(ResultWriter::create(o, folder.path("results")).directory(), folder.path("fresh/deep"));
  o.path = "/proc/nowhere";
  EXPECT_THAT(usage_error([&] { ResultWriter::create(o, folder.path("results")); }),
              HasSubstr("cannot create the folder"));
}

TEST(ResultWriter, ValidatesWhatItIsGiven) {
  const TemporaryFolder folder;
  auto writer = ResultWriter::create(head(), folder.path("results"));
  PointRecord r = ok_record(points()[0], 1);
  r.work.share_of_peak = 3;
  EXPECT_EQ(writer.append(r).status, PointStatus::kError);
  EXPECT_EQ(read_result(writer.directory()).points[0].status, PointStatus::kError);
}

TEST(ReadResult, RefusesForeignFilesAndDamage) {
  const TemporaryFolder folder;
  EXPECT_THAT(usage_error([&] { read_result(folder.path("none")); }), HasSubstr("cannot read"));
  EXPECT_THAT(usage_error([&] { read_result(folder.write("a.json", "{}")); }),
              HasSubstr("no result of lnbench"));
  std::string directory;
  {
    auto writer = ResultWriter::create(head(), folder.path("results"));
    directory = writer.directory();
    writer.append(ok_record(points()[0], 1));
  }
  std::ofstream(directory + "/points.jsonl", std::ios::app)
      << "{ damaged }\n"
      << record_to_json(ok_record(points()[1], 1)) << "\n";
  EXPECT_THAT(usage_error([&] { read_result(directory); }), HasSubstr("points.jsonl:2:"));
  EXPECT_THAT(usage_error([&] { ResultWriter::resume(directory, head()); }),
              HasSubstr("damaged line 2 of points.jsonl; delete that line to measure the point "
                        "again"));
}

TEST(Summary, VerdictAndFits) {
  const auto all = points();
  std::vector<PointRecord> records;
  for (const Point& p : all) records.push_back(ok_record(p, 1));
  EXPECT_EQ(summarize(records, 7).verdict, "incomplete");
  EXPECT_NEAR(summarize(records, 6).fits[0].exponent, 0, 1e-12);
  records[0].source =
      Source::kSimulated;  // two sources in one series: two points are too few for a fit
  const Summary mixed = summarize(records, 6);
  ASSERT_EQ(mixed.fits.size(), 1u);
  EXPECT_THAT(mixed.fits[0].series, HasSubstr("ring"));
  records[5].status = PointStatus::kSkippedMemory;
  EXPECT_EQ(summarize(records, 6).verdict, "pass");
  EXPECT_TRUE(summarize(records, 6).fits.empty());
  records[5].status = PointStatus::kCheckFailed;
  EXPECT_EQ(summarize(records, 7).verdict, "fail");
}

// Two batches of one series, whose times lie on two lines; then batches of a constant number of
// tokens, which are one line: figure 5 of the paper.
TEST(Summary, FitsNeverMixBatches) {
  const auto record = [](int64_t seq_len, int64_t batch, double median_s) {
    PointRecord r = ok_record(points()[0], 1);
    r.params.problem.seq_len = seq_len;
    r.params.problem.batch = batch;
    r.timing.median_s = median_s;
    return r;
  };
  std::vector<PointRecord> two, tokens;
  for (const int64_t n : {1024, 2048, 4096}) {
    two.push_back(record(n, 1, double(n)));
    two.push_back(record(n, 8, n == 4096 ? 1 : 8 * double(n) * double(n)));
    tokens.push_back(record(n, 4096 / n, 7));
  }
  const Summary apart = summarize(two, 6), together = summarize(tokens, 3);
  ASSERT_EQ(apart.fits.size(), 2u);
  EXPECT_NEAR(apart.fits[0].exponent, 1, 1e-9);
  EXPECT_TRUE(apart.fits[0].series.ends_with(" batch=1"));
  EXPECT_TRUE(apart.fits[1].series.ends_with(" batch=8"));
  ASSERT_EQ(together.fits.size(), 1u);
  EXPECT_NEAR(together.fits[0].exponent, 0, 1e-9);
  EXPECT_TRUE(together.fits[0].series.ends_with(" tokens_per_batch=4K"));
}

TEST(Summary, ASeriesIsOneSetOfOptions) {
  PointRecord r = ok_record(points()[0], 1);
  std::vector<std::string> names{series_name(r.params)};
  r.params.collective = "bruck";
  names.push_back(series_name(r.params));
  r.params.options = {.ulysses_degree = 2, .ring_inner = 2};
  names.push_back(series_name(r.params));
  r.params.options.head_slice = 2;
  names.push_back(series_name(r.params));
  EXPECT_THAT(names[3], HasSubstr("ulysses_degree=2 ring_inner=2 head_slice=2"));
  for (size_t i = 1; i < names.size(); ++i) EXPECT_NE(names[i], names[i - 1]);
}

// Secrets in the environment reach no file and no text.
TEST(Canary, AppearsInNoOutput) {
  const std::string canary = "canary-5f2c91";
  for (const char* name : {"OMPI_MCA_secret_token", "OMP_API_KEY", "SLURM_JWT", "GITHUB_TOKEN",
                           "OMPI_MCA_password", "LNBENCH_SECRET", "AWS_SESSION", "gomp_Key"})
    ::setenv(name, canary.c_str(), 1);
  ::setenv("OMP_PROC_BIND", "close", 1);
  const TemporaryFolder folder;
  Result o = head();
  EXPECT_EQ(o.environment.variables.at("OMP_PROC_BIND"), "close");
  auto writer = ResultWriter::create(o, folder.path("results"));
  for (const Point& p : points()) writer.append(ok_record(p, 1));
  writer.finish(6);
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
    if (!entry.is_regular_file()) continue;
    ++files;
    std::ifstream file(entry.path());
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    EXPECT_EQ(text.find(canary), std::string::npos) << entry.path();
  }
  EXPECT_EQ(files, 3);
  EXPECT_EQ(dump_json(to_json(o.environment)).find(canary), std::string::npos);
  const Result r = read_result(writer.directory());
  std::ostringstream table;
  write_comparison(compare_results(r, r), {.wide = true, .out = &table});
  EXPECT_EQ(table.str().find(canary), std::string::npos);
}

// A folder for scripts/validate_json_test.py.
TEST(SampleResult, IsWrittenForTheSchemaCheck) {
  const char* target = std::getenv("LONGNET_SAMPLE_RESULT");
  if (!target) GTEST_SKIP() << "LONGNET_SAMPLE_RESULT names no folder";
  std::filesystem::remove_all(target);
  const TemporaryFolder folder;
  Result o = head();
  o.path = target;
  auto writer = ResultWriter::create(o, folder.path("results"));
  const auto all = points();
  for (const Point& p : all) writer.append(ok_record(p, 1e-3));
  PointRecord skipped = make_record(all[0]), full = ok_record(all[1], 0.5);
  skipped.status = PointStatus::kSkippedMemory;
  skipped.reason = "needs 3 TiB, the limit is 8 GiB";
  writer.append(skipped);
  full.comm = {1, 1, 2, 2};
  full.work.flops = 3.5e21;
  full.work.coverage = {1.0, 0.5};
  full.memory.by_tag = {{"kv", 4}};
  full.memory.measured_peak_bytes = 9;
  full.per_rank = {{0, 0.5}, {1, NAN}};
  full.check = {.status = "pass", .reference = "double", .max_rel_error = 1e-7};
  full.work.balance = 0.5;
  full.ablations = {.full_s = 0.5, .compute_only_s = 0.25};
  full.params.pattern = sparse_pattern(64, 8);
  full.metrics = {{"measured_share", 1.0}};
  full.timeline = {{0, "compute", "attend", 0, 0.5}};
  writer.append(full);
  writer.finish(6);
}

}  // namespace
}  // namespace longnet
