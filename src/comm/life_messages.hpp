// The messages of watchdogs: life signs to rank 0, its answers, and the words with which a job
// ends. Non-blocking, one of a kind under way per pair of ranks; used by one thread. Rank 0 listens
// to each of the others, which all listen to whoever speaks: only rank 0 has memory for every rank.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/mpi_support.hpp"
#include "trireme/comm/liveness.hpp"

namespace trireme::comm {

class LifeMessages {
 public:
  // Collective over `world`.
  explicit LifeMessages(const CommView& world);
  LifeMessages(const LifeMessages&) = delete;
  // Local: nothing may be under way any more (end()).
  ~LifeMessages() = default;

  bool leads() const { return comm_->rank() == 0; }
  // Tells rank 0 of this rank's activity; on rank 0 nothing is sent.
  void report(const LifeSign& sign);
  // Takes what has come. Rank 0: life signs, which it answers. Elsewhere: answers of rank 0.
  void receive();
  // Rank 0: signs of all ranks since the last call; nullopt for those that sent none. Elsewhere one
  // element: whether rank 0 answered.
  std::vector<std::optional<LifeSign>> take_heard();
  // The most urgent wish of any rank so far.
  job::StopReason wish() const { return wish_; }
  // Words by which some other rank ends the job.
  const std::optional<std::string>& ended() const { return ended_; }
  // Tells every other rank; returns at once.
  void end_job(const std::string& words);

  // The end, in which messages still go to and fro: this rank has come to it, and whether all have.
  void begin_leaving();
  bool all_leave();
  // When all have: completes pending messages. Collective.
  void finish();
  // Without the others: what may still arrive keeps its memory, for good.
  static void abandon(std::unique_ptr<LifeMessages> messages);

 private:
  struct Frame {
    double silent;
    int64_t answers, tokens;
    uint8_t waiting;
    uint8_t io;
    job::StopReason wish;
    char host[64];
    char where[360];
    char call[200];
  };
  struct Answer {
    uint8_t ends;
    job::StopReason wish;
  };
  struct Words {
    Answer head;
    char words[1500];  // where it ends; else they are not sent
  };
  struct Peer {  // of rank 0
    Frame in{};
    Answer out{};
    MPI_Request receiving = MPI_REQUEST_NULL;
    MPI_Request answering = MPI_REQUEST_NULL;
  };

  MPI_Comm handle() const { return static_cast<MPI_Comm>(comm_->native()); }
  void listen(int rank);
  void hear();
  void answer(int rank);
  void drain();
  void hear_wish(job::StopReason wish) { wish_ = std::max(wish_, wish); }

  Comm comm_;
  std::vector<Peer> peers_;  // on rank 0 of all ranks; elsewhere none
  Words in_{}, verdict_{};
  MPI_Request hearing_ = MPI_REQUEST_NULL;
  std::vector<MPI_Request> ending_;  // once the job ends
  std::vector<std::optional<LifeSign>> heard_;
  std::optional<std::string> ended_;
  job::StopReason wish_ = job::StopReason::none;
  Frame out_{};
  MPI_Request sending_ = MPI_REQUEST_NULL;
  MPI_Request leaving_ = MPI_REQUEST_NULL;
  int unanswered_ = 0;
};

}  // namespace trireme::comm
