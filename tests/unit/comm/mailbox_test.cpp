// Mailboxes under load: every message once, whole, in the order of its sender, at any length of the
// queues, and nobody stands still.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "comm/mpi_support.hpp"
#include "support/world.hpp"
#include "trireme/comm/mailbox.hpp"

namespace trireme::comm {
namespace {

using test::world;

// Messages of all ranks together. TRIREME_MAILBOX_MESSAGES=1000000 with 8 ranks is the full test.
int64_t messages_of_all() {
  const char* value = std::getenv("TRIREME_MAILBOX_MESSAGES");
  return value ? std::atoll(value) : 2000;
}

struct Note {
  int32_t from = 0;
  int64_t number = 0;  // of those that `from` sent to the same rank
  bool last = false;
  std::string text;
  static constexpr auto fields = std::tuple{&Note::from, &Note::number, &Note::last, &Note::text};
};

std::string text_of(int from, int to, int64_t number) {
  std::mt19937 random(static_cast<uint32_t>(number * 131 + from * 17 + to));
  const size_t length =
      random() % 50 == 0 ? random() % 20000 : random() % 200;  // some beyond what MPI sends eagerly
  return std::string(length, static_cast<char>('a' + random() % 26));
}

// A box that is left with mail under way, as where an error ends a run: those that come after it
// get none of that.
TEST(Mailbox, LateMailComesToNobodyElse) {
  for (int round = 0; round < 20; ++round) {
    Mailbox<int> left(world(), "left", {});
    for (int to = 0; to < world().size(); ++to) left.post(to, round);
  }
  Mailbox<int> next(world(), "next", {});
  world().barrier();
  for (int look = 0; look < 100; ++look) {
    EXPECT_FALSE(next.take().has_value());
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  world().barrier();
}

// Each rank posts to random ranks, itself among them, with random pauses, and posts no more while
// the box is congested.
void storm(const MailLimits& limits, int64_t total) {
  const int size = world().size();
  const int me = world().rank();
  Mailbox<Note> box(world(), "storm", limits);
  std::mt19937 random(static_cast<uint32_t>(me));
  std::vector<int64_t> sent(static_cast<size_t>(size)), got(static_cast<size_t>(size));
  const int64_t mine = total / size;
  int64_t posted = 0;
  int ended = 0;
  bool ends_sent = false;
  wait_until("storm", [&] {
    for (int burst = 0; burst < 100 && !box.congested() && posted < mine; ++burst, ++posted) {
      const int to = static_cast<int>(random() % static_cast<uint32_t>(size));
      const int64_t number = sent[static_cast<size_t>(to)]++;
      box.post(to, {me, number, false, text_of(me, to, number)});
    }
    if (posted == mine && !std::exchange(ends_sent, true)) {
      for (int to = 0; to < size; ++to) box.post(to, {me, sent[static_cast<size_t>(to)], true, {}});
    }
    for (int burst = 0; burst < 50; ++burst) {
      const auto note = box.take();
      if (!note) break;
      EXPECT_EQ(note->number, got[static_cast<size_t>(note->from)]++) << "the order of its sender";
      if (note->last) {
        ++ended;
      } else {
        EXPECT_EQ(note->text, text_of(note->from, me, note->number));
      }
      if (random() % 1000 == 0)
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
    }
    return ended == size && box.quiet();
  });
  EXPECT_EQ(world().sum(std::accumulate(got.begin(), got.end(), int64_t{0})),
            mine * size + int64_t{size} * size);
  EXPECT_FALSE(box.congested());
  EXPECT_FALSE(box.take().has_value()) << "nothing comes twice";
  world().barrier();
}

TEST(Mailbox, EveryMessageArrivesOnceAndInOrder) { storm({}, messages_of_all()); }

TEST(Mailbox, QueuesOfOneMessageStopNobody) { storm({.messages = 1}, messages_of_all()); }

TEST(Mailbox, QueuesOfFewBytesStopNobody) {
  storm({.messages = 100, .bytes = 1}, messages_of_all() / 4);
}

TEST(Mailbox, LongMessagesTravelInPieces) {
  const int64_t before = max_count;
  max_count = 64;
  storm({.messages = 4}, 200);
  max_count = before;
}

TEST(Mailbox, WhatFindsNoRoomIsHeldBackAndNotLost) {
  Mailbox<int64_t> box(world(), "short", {.messages = 2});
  const int next = (world().rank() + 1) % world().size();
  for (int64_t i = 0; i < 5; ++i) box.post(next, i);
  EXPECT_TRUE(box.congested());
  EXPECT_FALSE(box.quiet());
  int64_t wanted = 0;
  wait_until("five", [&] {
    while (const auto got = box.take()) EXPECT_EQ(*got, wanted++);
    return wanted == 5 && box.quiet();
  });
  world().barrier();
}

// The sender of a message that nobody takes may end its mailbox: what is under way stays valid.
TEST(Mailbox, MayEndBeforeItIsQuiet) {
  {
    ByteMailbox box(world(), "left", {.messages = 1});
    if (world().rank() == 0) box.post(world().size() - 1, std::string(100000, 'x'));
    world().barrier();
  }
  world().barrier();
}

TEST(Barrier, AsleepDoesWhatOthersNeed) {
  Mailbox<int64_t> box(world(), "barrier", {.messages = 1});
  const int last = world().size() - 1;
  int64_t taken = 0;
  const auto take = [&] {
    const bool got = box.take().has_value();
    taken += got;
    return got;
  };
  if (world().rank() == 0) {
    for (int64_t i = 0; i < 20; ++i) box.post(last, i);
    wait_until("room", [&] {
      if (last == 0) take();
      box.progress();
      return box.quiet();
    });
  }
  world().sleeping_barrier(take);  // the others are there already
  EXPECT_EQ(taken, world().rank() == last ? 20 : 0);
}

}  // namespace
}  // namespace trireme::comm
