// Which checkpoint a start takes, and what it decides for the start.
#include "driver/resume_point.hpp"

#include <gtest/gtest.h>

#include "support/samples.hpp"
#include "trireme/checkpoint/writer.hpp"
#include "trireme/driver/run_state.hpp"
#include "unit/config/expect_error.hpp"

namespace trireme::driver {
namespace {

using config::DType;
using test::SharedFolder;
using test::world;

// A checkpoint of this state, without models.
void write(const std::filesystem::path& folder, RunState state) {
  checkpoint::Content content;
  content.state = to_json(state);
  checkpoint::save(world(), folder, state.iteration, content);
}

// ckpt.resume as a relative path names another checkpoint on a rank that works elsewhere: rank 0's
// counts, since collectives follow.
TEST(ResumePoint, RanksInOtherFoldersAgree) {
  const SharedFolder folder;
  const std::string relative = "other/step-000003";
  RunState state;
  state.iteration = 1;
  state.resumed_from = world().broadcast(name_of_checkpoint(relative), 0);
  write(folder.path() / "ckpt", state);
  const auto before = std::filesystem::current_path();
  if (world().rank() != 0) std::filesystem::current_path("/");
  EXPECT_FALSE(takes_named_checkpoint(relative, folder.path() / "ckpt", world()))
      << "it was obeyed";
  EXPECT_TRUE(takes_named_checkpoint("other/step-000004", folder.path() / "ckpt", world()));
  EXPECT_TRUE(takes_named_checkpoint(relative, folder.path() / "none", world()));
  std::filesystem::current_path(before);
}

TEST(ResumePoint, OnePlaceHasOneName) {
  const std::string here = std::filesystem::current_path().string();
  struct Case {
    std::string path, name;
  };
  const Case cases[] = {{"/a/step-000001", "/a/step-000001"},
                        {"/a/step-000001/", "/a/step-000001"},
                        {"/a/./b/../step-000001", "/a/step-000001"},
                        {"/a//step-000001//", "/a/step-000001"},
                        {"runs/a", here + "/runs/a"},
                        {"./runs/a/", here + "/runs/a"}};
  for (const Case& one : cases) {
    EXPECT_EQ(normal_path(one.path), one.name) << one.path;
    EXPECT_EQ(name_of_checkpoint(one.path), one.name) << one.path;
  }
}

TEST(ResumePoint, ALinkKeepsItsName) {
  const SharedFolder folder;
  if (world().rank() == 0)
    std::filesystem::create_directory_symlink("step-000001", folder.path() / "best");
  world().barrier();
  EXPECT_EQ(normal_path(folder.path() / "best").filename(), "best")
      << "it is another checkpoint tomorrow";
}

TEST(ResumePoint, ADamagedCheckpointHasRecordedNothing) {
  const SharedFolder folder;
  const auto ckpt = folder.path() / "ckpt";
  const std::string named = (folder.path() / "elsewhere/step-000009").string();
  RunState state;
  state.iteration = 1;
  state.resumed_from = name_of_checkpoint(named);
  write(ckpt, state);
  EXPECT_FALSE(takes_named_checkpoint(named, ckpt, world()));
  EXPECT_FALSE(takes_named_checkpoint("auto", ckpt, world()));
  EXPECT_FALSE(takes_named_checkpoint("never", ckpt, world()));
  if (world().rank() == 0) std::filesystem::resize_file(ckpt / "step-000001/data.h5", 10);
  world().barrier();
  EXPECT_TRUE(takes_named_checkpoint(named, ckpt, world()));
  world().barrier();
}

// What the first start decided, as its checkpoint says.
TEST(ResumePoint, DecisionsOfTheFirstStartAreFound) {
  struct Case {
    std::string type, deck;
    std::optional<DType> found;
  };
  const Case cases[] = {{"bf16", "", DType::bf16},
                        {"fp32", "[model]\ndtype = \"bf16\"\n", DType::f32},
                        {"", "[model]\ndtype = \"bf16\"\n", DType::bf16},
                        {"", "[model]\ndtype = \"fp32\"\n", DType::f32},
                        {"", "[model]\ndtype = \"auto\"\n", {}},
                        {"", "[model]\nof = \"another version\"\n", {}},
                        {"fp64", "", {}}};
  for (const Case& one : cases) {
    const SharedFolder folder;
    RunState state;
    state.iteration = 4;
    state.compute_type = one.type;
    state.deck = one.deck;
    state.date = "2026-03-09";
    write(folder.path(), state);
    const StoredStart stored = stored_start("auto", folder.path(), world());
    EXPECT_EQ(stored.compute_type, one.found) << one.type << one.deck;
    EXPECT_EQ(stored.date, "2026-03-09");
    EXPECT_EQ(stored_start("never", folder.path(), world()).date, "");
    EXPECT_EQ(stored_start("auto", folder.path() / "none", world()).date, "");
  }
}

// The run that ckpt.resume leads to decides, once; then the run's own checkpoints.
TEST(ResumePoint, ANamedCheckpointDecidesUntilItWasObeyed) {
  const SharedFolder folder;
  RunState other;
  other.iteration = 3;
  other.date = "2026-01-01";
  write(folder.path() / "other", other);
  const auto own = folder.path() / "own";
  const std::string named = (folder.path() / "other/step-000003").string();
  RunState state;
  state.iteration = 5;
  state.date = "2026-02-02";
  write(own, state);
  EXPECT_EQ(stored_start(named, own, world()).date, "2026-01-01");
  state.iteration = 6;
  state.resumed_from = name_of_checkpoint(named);
  write(own, state);
  EXPECT_EQ(stored_start(named, own, world()).date, "2026-02-02");
  config::error_of(ExitCode::input_missing, [&] {
    static_cast<void>(stored_start((folder.path() / "no-such").string(), own, world()));
  });
}

}  // namespace
}  // namespace trireme::driver
