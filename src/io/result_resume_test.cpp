// Tests of result.cpp: going on with an interrupted run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include "core/testing/test_support.h"
#include "io/result.h"
#include "io/sha256.h"
#include "io/testing/small_run.h"
#include "json/json_reader.h"

namespace longnet {
namespace {

using testing::HasSubstr;

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

TEST(ResultWriter, ResumeFollowsNoLink) {
  namespace fs = std::filesystem;
  const TemporaryFolder folder;
  const std::string directory = ResultWriter::create(head(), folder.path("results")).directory();
  fs::create_directory_symlink(directory, folder.path("link"));
  for (const std::string& link : {folder.path("link"), folder.path("link/")})
    EXPECT_THAT(usage_error([&] { ResultWriter::resume(link, head()); }),
                testing::AllOf(HasSubstr("link' is a symbolic link"), HasSubstr(directory)));
  EXPECT_EQ(usage_error([&] { ResultWriter::resume(directory + "/", head()); }), "");
  fs::create_directory_symlink(folder.path("results"), folder.path("above"));  // as a site has them
  const std::string below = folder.path("above/") + fs::path(directory).filename().string();
  EXPECT_EQ(usage_error([&] { ResultWriter::resume(below, head()); }), "");
  fs::rename(directory + "/run.json", directory + "/other.json");
  fs::create_symlink("other.json", directory + "/run.json");
  EXPECT_THAT(usage_error([&] { ResultWriter::resume(directory, head()); }),
              HasSubstr("run.json' is a symbolic link"));
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

}  // namespace
}  // namespace longnet
