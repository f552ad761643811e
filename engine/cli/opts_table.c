#include "engine/cli/opts_table.h"

#define AT(field) offsetof(struct opts, field)
#define BOTH (IN_SERVE | IN_RUN | IN_BATCH)
#define ALL (BOTH | IN_SIMULATE)
#define SEARCH (IN_REPRODUCE | IN_TUNE | IN_PLAN | IN_REGRET)
#define TERA 1e12

static const struct opt_row rows[] = {
    {"model", NULL, 'm', OPT_TEXT, GROUP_MODEL, BOTH, AT(model), "FILE|FOLDER", NULL, 0, 0, NULL,
     "the model, a GGUF file or a folder with config.json and safetensors files; the same as the first word after the "
     "command"},
    {"tokenizer", NULL, 0, OPT_TEXT, GROUP_MODEL, BOTH, AT(tokenizer), "FILE|FOLDER", NULL, 0, 0, NULL,
     "a GGUF file, or a folder with a tokenizer.json, whose tokenizer and chat template are used (default: the model's "
     "own)"},
    {"served-model-name", "alias", 0, OPT_LIST, GROUP_MODEL, IN_SERVE | IN_BATCH, AT(names), "NAME", NULL, 0, 0, NULL,
     "what clients call it; may be given several times (default: the file's name)"},
    {"max-model-len", NULL, 'c', OPT_COUNT, GROUP_MODEL, ALL, AT(max_model_len), "N", "0", 0, 1 << 30, NULL,
     "tokens of prompt and answer together; 0: what the model was trained for"},
    {"chat-template", NULL, 0, OPT_TEXT, GROUP_MODEL, BOTH, AT(chat_template), "FILE|NAME", NULL, 0, 0, NULL,
     "a Jinja file, or chatml, llama2, llama3, mistral (default: the model's own)"},
    {"think-end", NULL, 0, OPT_TEXT, GROUP_MODEL, IN_SERVE | IN_BATCH, AT(think_end), "TEXT", NULL, 0, 0, NULL,
     "the marker behind the model's thinking (default: </think> where the chat template has it)"},
    {"reasoning-parser", NULL, 0, OPT_CHOICE, GROUP_MODEL, IN_SERVE | IN_BATCH, AT(reasoning), "NAME", "auto", 0, 0,
     "auto|none|qwen3|deepseek_r1",
     "auto, and vLLM's names: what the model thinks, up to --think-end, is reasoning_content; none: it is content"},
    {"tool-call-parser", NULL, 0, OPT_CHOICE, GROUP_MODEL, IN_SERVE | IN_BATCH, AT(tool_calls), "FORMAT", "auto", 0, 0,
     "auto|none|hermes|llama3_json|mistral",
     "how the model writes calls of tools, which answers then have as tool_calls; auto: as the chat template says"},
    {"probe-text", NULL, 0, OPT_TEXT, GROUP_MODEL, IN_SERVE | IN_BATCH, AT(probe_text), "TEXT", NULL, 0, 0, NULL,
     "what follows the marker when a model is asked for its answer by now (default: The final answer is \\boxed{)"},
    {"load-format", NULL, 0, OPT_CHOICE, GROUP_MODEL, BOTH, AT(load_format), "FORMAT", "auto", 0, 0,
     "auto|gguf|safetensors|dummy", "dummy: seeded random weights for --hf-config, no file needed"},
    {"hf-config", NULL, 0, OPT_TEXT, GROUP_MODEL, ALL, AT(hf_config), "FILE", NULL, 0, 0, NULL,
     "a Hugging Face config.json, for --load-format dummy and moonshift simulate"},
    {"dummy-dtype", NULL, 0, OPT_CHOICE, GROUP_MODEL, ALL, AT(dummy_dtype), "TYPE", "q8_0", 0, 0,
     "f32|f16|bf16|q4_0|q4_1|q5_0|q5_1|q8_0|iq4_nl|iq4_xs|q2_k|q3_k|q4_k|q5_k|q6_k|fp8_e4m3", "of dummy matrices"},
    {"seed", NULL, 0, OPT_SEED, GROUP_MODEL, ALL, AT(seed), "N", "0", 0, 0, NULL,
     "of dummy weights, of the answers of moonshift run, of batch lines that ask for none, and of generated traffic"},
    {"embedding-model", NULL, 0, OPT_TEXT, GROUP_MODEL, IN_SERVE | IN_BATCH, AT(embedding_model), "FILE|FOLDER", NULL,
     0, 0, NULL,
     "an encoder for /v1/embeddings, /rerank and /score, beside the model or, without one, alone: a GGUF file or a "
     "Hugging Face folder, of the BERT family or of a decoder for embeddings"},
    {"embedding-name", NULL, 0, OPT_TEXT, GROUP_MODEL, IN_SERVE | IN_BATCH, AT(embedding_name), "NAME", NULL, 0, 0,
     NULL, "what clients call the encoder (default: the file's name)"},
    {"embedding-replicas", NULL, 0, OPT_COUNT, GROUP_MACHINE, IN_SERVE | IN_BATCH, AT(embedding_replicas), "N", "1", 1,
     64, NULL, "workers that run the encoder, each a batch at a time, over one copy of its weights"},
    {"embedding-threads", NULL, 0, OPT_COUNT, GROUP_MACHINE, IN_SERVE | IN_BATCH, AT(embedding_threads), "N", "0", 0,
     1024, NULL, "cores for each of them; 0: those this process may use, shared among them"},
    {"embedding-batch-tokens", NULL, 0, OPT_COUNT, GROUP_SCHEDULING, IN_SERVE | IN_BATCH, AT(embedding_batch_tokens),
     "N", "2048", 1, 1 << 20, NULL, "tokens of one batch of the encoder; a text that is longer is one alone"},
    {"embedding-queued-tokens", NULL, 0, OPT_COUNT, GROUP_SCHEDULING, IN_SERVE, AT(embedding_queued_tokens), "N", "4M",
     0, TERA, NULL, "tokens that may wait for the encoder; the next request gets 503 and Retry-After; 0: no limit"},

    {"policy", NULL, 0, OPT_TEXT, GROUP_SCHEDULING, BOTH, AT(policy), "NAME|FILE[:PARAM=VALUE,...]", "fcfs", 0, 0, NULL,
     "the policy that decides what runs: a Lua file, or NAME for NAME.lua in the policy folder, with its parameters; "
     "native: the built-in one, without a script"},
    {"policy", NULL, 0, OPT_LIST, GROUP_SCHEDULING, IN_SIMULATE, AT(policies), "NAME|FILE[:PARAM=VALUE,...]", "fcfs", 0,
     0, NULL, "the policy, as in serve; given several times, each policy gets its own run, and they are compared"},
    {"policy", NULL, 0, OPT_LIST, GROUP_SCHEDULING, IN_REVISIT, AT(policies), "NAME|FILE", NULL, 0, 0, NULL,
     "with --recording: a policy that was live then, if no file of its name in the policy folder has its bytes; may be "
     "given several times"},
    {"policy-dir", NULL, 0, OPT_TEXT, GROUP_SCHEDULING, ALL | IN_NEW | IN_REVISIT, AT(policy_dir), "FOLDER", NULL, 0, 0,
     NULL, "the folder of policies; the live one's file is watched (default: policies/ here or beside the program)"},
    {"state-dir", NULL, 0, OPT_TEXT, GROUP_SCHEDULING, IN_SERVE, AT(state_dir), "FOLDER", NULL, 0, 0, NULL,
     "where versions of policies, the record of who changed them, and the last good one are kept; made if need be; one "
     "server at a time. Unless --policy is given, a start begins with the last good one"},
    {"policy-param", NULL, 0, OPT_LIST, GROUP_SCHEDULING, ALL | IN_CHECK, AT(policy_params), "NAME=VALUE", NULL, 0, 0,
     NULL, "a parameter that the policy declares; may be given several times"},
    {"policy-params-file", NULL, 0, OPT_TEXT, GROUP_SCHEDULING, ALL | IN_CHECK, AT(policy_params_file), "FILE", NULL, 0,
     0, NULL, "parameters as a JSON object, as written by moonshift tune; --policy-param wins"},
    {"scheduling-policy", NULL, 0, OPT_CHOICE, GROUP_SCHEDULING, IN_SERVE, AT(policy), "NAME", NULL, 0, 0,
     "fcfs|priority", "vLLM's name for --policy"},
    {"speculative-config", "sc", 0, OPT_TEXT, GROUP_SCHEDULING, IN_SERVE | IN_RUN | IN_BATCH, AT(speculative), "JSON",
     NULL, 0, 0, NULL,
     "vLLM's way to ask for drafts: {\"method\": \"suffix\", \"num_speculative_tokens\": 8} is "
     "--policy arctic --policy-param source=suffix --policy-param most=8; the method ngram is source=lookup; "
     "mlp_speculator and arctic, with a \"model\", are source=heads and --draft-model, and draft_model is "
     "source=model"},
    {"draft-model", NULL, 0, OPT_TEXT, GROUP_MODEL, BOTH, AT(draft_model), "FILE|FOLDER", NULL, 0, 0, NULL,
     "what guesses draft tokens, for a policy that drafts: a small model of the same vocabulary (a GGUF file or a "
     "Hugging Face folder), or heads for the model's last hidden state, an MLP or LSTM speculator as vLLM and Arctic "
     "Inference read it; --device cpu"},
    {"draft-kv-memory", NULL, 0, OPT_COUNT, GROUP_MEMORY, BOTH, AT(draft_kv_bytes), "BYTES", "256MiB", 1, 1e13, NULL,
     "for the KV cache of a small model in --draft-model; when it is full, requests go without its guesses"},
    {"draft-memory", NULL, 0, OPT_COUNT, GROUP_MEMORY, BOTH, AT(draft_bytes), "BYTES", "64MiB", 0, 1e12, NULL,
     "of what requests have said, for draft tokens by suffix decoding, by tenant; and as much again for the requests "
     "that run; 0: no suffix decoding"},
    {"draft-from", NULL, 0, OPT_CHOICE, GROUP_MEMORY, BOTH, AT(draft_from), "TEXT", "outputs", 0, 0,
     "outputs|prompts|both", "what of a request that has ended goes there"},
    {"draft-file", NULL, 0, OPT_TEXT, GROUP_MEMORY, IN_SERVE, AT(draft_file), "FILE", NULL, 0, 0, NULL,
     "keeps that from one run to the next: read at the start where it is there, written at the end and by POST "
     "/admin/drafts/save; what users said is in it"},
    {"max-num-seqs", NULL, 0, OPT_COUNT, GROUP_SCHEDULING, ALL, AT(max_num_seqs), "N", "128", 1, 4096, NULL,
     "sequences that run at once"},
    {"max-num-batched-tokens", NULL, 0, OPT_COUNT, GROUP_SCHEDULING, ALL, AT(max_num_batched_tokens), "N", "2048", 1,
     1 << 20, NULL, "tokens of one step; longer prompts go in chunks"},
    {"max-num-queued-reqs", NULL, 0, OPT_COUNT, GROUP_SCHEDULING, IN_SERVE, AT(max_num_queued_reqs), "N", "1024", 0,
     65536, NULL,
     "requests that may wait; the next one gets 503 and Retry-After; 0: no limit but 65536 in all, with those that "
     "run"},
    {"max-num-queued-reqs", NULL, 0, OPT_COUNT, GROUP_SCHEDULING, IN_SIMULATE, AT(max_num_queued_reqs), "N", "0", 0,
     65536, NULL, "requests that may wait; the next one is refused; 0: no limit but 65536 in all, with those that run"},
    {"max-num-queued-tokens", NULL, 0, OPT_COUNT, GROUP_SCHEDULING, IN_SERVE | IN_SIMULATE, AT(max_num_queued_tokens),
     "N", "0", 0, TERA, NULL, "prompt tokens that may wait; 0: no limit"},
    {"async-scheduling", NULL, 0, OPT_SWITCH, GROUP_SCHEDULING, BOTH, AT(async_scheduling), NULL, "true", 0, 0, NULL,
     "GPUs: the next step of decodes is posted while one runs, as long as nothing happens that the policy would want "
     "to know (not with --record)"},
    {"run-ahead", NULL, 0, OPT_COUNT, GROUP_SCHEDULING, BOTH, AT(run_ahead), "N", "16", 1, 1024, NULL,
     "with --async-scheduling: the most steps of decodes that may follow one that the policy decided; the policy can "
     "ask "
     "for fewer"},

    {"starvation-seconds", NULL, 0, OPT_NUMBER, GROUP_SCHEDULING, IN_SERVE | IN_SIMULATE, AT(starvation_s), "S", "30",
     0, 86400, NULL,
     "a request that makes no progress for this long although there is room counts as a strike against the policy, and "
     "goes first; 0: off"},
    {"policy-probation-seconds", NULL, 0, OPT_NUMBER, GROUP_SCHEDULING, IN_SERVE, AT(policy_probation_s), "S", "30", 0,
     3600, NULL,
     "how long a policy is watched after it went live: it goes back to the one before by itself when requests fare "
     "much "
     "worse than before and the load is not why; 0: off"},
    {"policy-isolation", NULL, 0, OPT_CHOICE, GROUP_SCHEDULING, IN_SERVE, AT(policy_isolation), "HOW", "thread", 0, 0,
     "thread|process",
     "where policies run: thread: on the engine's, each in a Lua machine of its own; process: each in a confined "
     "process of its own, whose crash costs one step, for authors who are not trusted; needs libseccomp, and what-if "
     "is off"},
    {"policy-shadow-share", NULL, 0, OPT_NUMBER, GROUP_SCHEDULING, IN_SERVE, AT(policy_shadow_share), "SHARE", "0.02",
     0.0001, 1, NULL,
     "of the engine's time, what a policy may take that is asked beside the live one (moonshift policy shadow); "
     "decisions for which there is no time are passed over, and counted"},
    {"max-park-seconds", NULL, 0, OPT_NUMBER, GROUP_MEMORY, ALL, AT(park_s), "S", "10", 0.001, 86400, NULL,
     "how long a preempted request may keep its KV; then it is computed again, and goes first"},
    {"kv-cache-memory-bytes", NULL, 0, OPT_COUNT, GROUP_MEMORY, ALL, AT(kv_bytes), "BYTES", "0", 0, 1e15, NULL,
     "memory for the KV cache of each rank (2GiB, 500MB, ...); 0: by --memory-utilization"},
    {"host-kv-memory", NULL, 0, OPT_COUNT, GROUP_MEMORY, ALL, AT(host_kv), "BYTES", "0", 0, 1e15, NULL,
     "memory of the machine for KV that is not in use now, of all ranks together: where policies put it, and cached "
     "prefixes that ranks have no room for; it comes back into any group, in any layout (like 8GiB)"},
    {"disk-kv", NULL, 0, OPT_TEXT, GROUP_MEMORY, IN_SERVE, AT(disk_kv), "FILE[:BYTES]", NULL, 0, 0, NULL,
     "below host memory: cached prefixes go to this file, too, and survive a restart; of at most BYTES (16GiB unless "
     "given). Not with --record"},
    {"rank-memory", NULL, 0, OPT_COUNT, GROUP_MEMORY, ALL, AT(rank_memory), "BYTES", "0", 0, 1e15, NULL,
     "each rank has so much memory of its own for weights, working memory and KV cache, as on a GPU; 0: ranks share "
     "the machine's memory, and the one copy of what each of them holds"},
    {"gpu-memory-utilization", "memory-utilization", 0, OPT_NUMBER, GROUP_MEMORY, BOTH, AT(memory_share), "SHARE",
     "0.4", 0.001, 0.999, NULL,
     "share of the memory (of the machine, of each GPU) for weights and KV cache together; GPUs: 0.9 unless given"},
    {"gpu-memory-utilization", "memory-utilization", 0, OPT_NUMBER, GROUP_MEMORY, IN_SIMULATE, AT(memory_share),
     "SHARE", "0.9", 0.001, 0.999, NULL, "share of a simulated device's memory for weights and KV cache together"},
    {"kv-cache-dtype", NULL, 0, OPT_CHOICE, GROUP_MEMORY, ALL, AT(kv_dtype), "TYPE", "auto", 0, 0,
     "auto|f16|bf16|f32|fp8|int8|float16|bfloat16|float32|fp8_e4m3",
     "auto: f16; bf16 with fast CPU inputs; fp8: E4M3 with no scale (1.0), so what is larger than 448 "
     "becomes 448; int8 (CPUs): a scale a token"},
    {"block-size", NULL, 0, OPT_COUNT, GROUP_MEMORY, ALL, AT(block_size), "N", "0", 0, 256, NULL,
     "tokens of a KV block that holds all KV heads, a multiple of 16; 0: 16, or 32 with several ranks"},
    {"enable-prefix-caching", NULL, 0, OPT_SWITCH, GROUP_MEMORY, ALL, AT(prefix_caching), NULL, "true", 0, 0, NULL,
     "prompts that begin alike share the KV of their common prefix (per tenant)"},

    {"device", NULL, 0, OPT_CHOICE, GROUP_MACHINE, BOTH, AT(device), "KIND", "cpu", 0, 0, "auto|cpu|cuda|sim",
     "cuda: NVIDIA GPUs, if the program was built for them; auto: cuda if a GPU is found, else cpu; sim: computes "
     "nothing, has virtual costs and random tokens, to try policies and clients"},
    {"devices", NULL, 0, OPT_TEXT, GROUP_MACHINE, BOTH, AT(devices), "LIST", NULL, 0, 0, NULL,
     "the GPU of each rank, like 0,1,2,3; 0,0 puts two ranks on one (default: one after the other, in turn)"},
    {"invariant", NULL, 0, OPT_SWITCH, GROUP_MACHINE, BOTH, AT(invariant), NULL, "false", 0, 0, NULL,
     "GPUs: add every sum in one fixed order, so that answers equal the CPU's in every layout, batch and chunk; "
     "slower. "
     "The CPU always does so"},
    {"cudagraph-capture-sizes", "cuda-graph-sizes", 0, OPT_TEXT, GROUP_MACHINE, BOTH, AT(graph_sizes), "LIST", NULL, 0,
     0, NULL,
     "GPUs: batch sizes of decode steps for which graphs are recorded at start, like 1,8,64 (default: "
     "1,2,4,8,16,32,48,64,96,128, up to --max-num-seqs)"},
    {"enforce-eager", NULL, 0, OPT_SWITCH, GROUP_MACHINE, BOTH, AT(enforce_eager), NULL, "false", 0, 0, NULL,
     "GPUs: record no graphs; every step launches its kernels one by one"},
    {"plain-kernels", NULL, 0, OPT_SWITCH, GROUP_MACHINE, BOTH, AT(plain_kernels), NULL, "false", 0, 0, NULL,
     "GPUs: only kernels that every GPU has, none of one architecture's own; slower"},
    {"early-launch", NULL, 0, OPT_SWITCH, GROUP_MACHINE, BOTH, AT(early_launch), NULL, "true", 0, 0, NULL,
     "GPUs from 9.0 on: a kernel of a decode step may begin before the one before it has ended"},
    {"self-check", NULL, 0, OPT_SWITCH, GROUP_MACHINE, BOTH, AT(self_check), NULL, "true", 0, 0, NULL,
     "GPUs: try the kernels at start, and leave out what comes out wrong"},
    {"gpu-tuning", NULL, 0, OPT_TEXT, GROUP_MACHINE, BOTH, AT(gpu_tuning), "FOLDER", NULL, 0, 0, NULL,
     "GPUs: with --warmup each shape of product is tried in its ways, and what was fastest is kept there for the next "
     "start; off: products go by a rule (default: moonshift in $XDG_CACHE_HOME or ~/.cache)"},
    {"warmup", NULL, 0, OPT_SWITCH, GROUP_MACHINE, BOTH, AT(warmup), NULL, "true", 0, 0, NULL,
     "GPUs: try the largest step of every layout before serving (without it the server starts sooner, but the first "
     "requests take longer, and memory may run out while serving)"},
    {"threads", NULL, 't', OPT_COUNT, GROUP_MACHINE, BOTH, AT(threads), "N", "0", 0, 1024, NULL,
     "cores to compute on; 0: those this process may use, without second threads of a core and efficiency cores, and "
     "no "
     "more than its control group (a container, say) has the time of"},
    {"numa", NULL, 0, OPT_CHOICE, GROUP_MACHINE, BOTH, AT(numa), "HOW", "auto", 0, 0, "auto|off",
     "auto: on a machine of several NUMA nodes, and with as many ranks, each rank stays on the CPUs of one node, and "
     "each node has a copy of the weights; off: ranks run anywhere, with one copy"},
    {"ranks", NULL, 0, OPT_COUNT, GROUP_MACHINE, ALL, AT(ranks), "N", "0", 0, 64, NULL,
     "workers that share the cores and run the model in any layout; 0: as many as the four sizes below need"},
    {"tensor-parallel-size", "tp", 0, OPT_COUNT, GROUP_MACHINE, ALL, AT(tp), "N", "0", 0, 64, NULL,
     "the partition at start: each group splits heads and weights over N ranks (also -tp)"},
    {"ulysses-sequence-parallel-size", "sp", 0, OPT_COUNT, GROUP_MACHINE, ALL, AT(sp), "N", "0", 0, 64, NULL,
     "the partition at start: each group splits the tokens of a step over N ranks (also -sp)"},
    {"pipeline-parallel-size", "pp", 0, OPT_COUNT, GROUP_MACHINE, ALL, AT(pp), "N", "0", 0, 64, NULL,
     "the partition at start: each group splits the layers over N stages (also -pp)"},
    {"data-parallel-size", "dp", 0, OPT_COUNT, GROUP_MACHINE, ALL, AT(dp), "N", "0", 0, 64, NULL,
     "the partition at start: N groups (also -dp)"},
    {"shift-weights", NULL, 0, OPT_CHOICE, GROUP_MACHINE, ALL, AT(shift_weights), "HOW", "view", 0, 0, "view|copy",
     "view: tensor-parallel shards are views of the one copy; copy: a second, sharded copy, as in the Shift "
     "Parallelism paper"},
    {"weights", NULL, 0, OPT_CHOICE, GROUP_MACHINE, ALL, AT(weights), "HOW", "replicated", 0, 0,
     "replicated|pooled|sharded",
     "replicated: every rank has all weights; pooled: the feed-forward matrices of a layer lie on one rank, which the "
     "others fetch them from or send their rows to, and what that saves holds KV; sharded: a rank holds its share of "
     "the "
     "layout that its group runs, and a policy changes that"},
    {"shard-memory", NULL, 0, OPT_COUNT, GROUP_MEMORY, ALL, AT(shard_memory), "BYTES", "0", 0, 1e15, NULL,
     "with --weights sharded: what each rank has for its share of the layers, the old and the new one together; 0: "
     "twice the larger of the start's and of the layouts that cut the layers most"},
    {"pool-owner", NULL, 0, OPT_TEXT, GROUP_MACHINE, ALL, AT(pool_owner), "layer-mod[:N]|contiguous[:N]|LIST",
     "layer-mod", 0, 0, NULL,
     "with --weights pooled: layer l on rank l mod ranks; ranges of layers; or the rank of each layer, 0,0,1,1. With "
     "N, "
     "or as 0+1,2+3, each layer is cut into shares on so many ranks, as tensor parallel groups multiply with them"},
    {"pool-slots", NULL, 0, OPT_COUNT, GROUP_MACHINE, ALL, AT(pool_slots), "N", "2", 0, 512, NULL,
     "with --weights pooled: fetched layers that a rank has room for, the one in use included"},
    {"pool-order", NULL, 0, OPT_CHOICE, GROUP_MACHINE, ALL, AT(pool_order), "ORDER", NULL, 0, 0, "shifted|sliced|plain",
     "with --weights pooled: in which order a rank fetches. shifted: each begins a cycle with another owner; sliced: "
     "in "
     "tiles of the next layers in turn; plain: as they are needed (default: shifted with as many slots as ranks, else "
     "sliced)"},
    {"pool-tile", NULL, 0, OPT_COUNT, GROUP_MACHINE, ALL, AT(pool_tile), "BYTES", "1MiB", 4096, TERA, NULL,
     "with --weights pooled: bytes of one copy"},
    {"link-gbps", NULL, 0, OPT_NUMBER, GROUP_MACHINE, ALL, AT(link_gbps), "GB/S", "0", 0, 1e6, NULL,
     "with --weights pooled: no more than so many 10^9 bytes a second leave an owner, or reach a reader; 0: no bound "
     "(simulate --hardware: the machine's own link)"},
    {"comm-sets", NULL, 0, OPT_LIST, GROUP_MACHINE, ALL, AT(comm_sets), "RANKS", NULL, 0, 0, NULL,
     "further ranks that may form a group, besides aligned powers of two and the whole node: 0-2 or 1,2; may be given "
     "several times"},
    {"isa", NULL, 0, OPT_CHOICE, GROUP_MACHINE, BOTH, AT(isa), "SET", "auto", 0, 0,
     "auto|portable|avx2|avx512|amx|neon|dotprod|i8mm", "instruction set (same results, but 16-bit weights on amx)"},
    {"cpu-precision", NULL, 0, OPT_CHOICE, GROUP_MACHINE, BOTH, AT(cpu_precision), "HOW", NULL, 0, 0, "high|fast",
     "what products round their inputs to: fast (the default), in less time: eight bits with quantised weights, "
     "bfloat16 with F16 and BF16 ones, and in attention; high: sixteen bits, and nothing (docs/numbers.md says what "
     "both cost). Both are the same bits in every layout"},
    {"profile", NULL, 0, OPT_SWITCH, GROUP_MACHINE, BOTH, AT(profile), NULL, "false", 0, 0, NULL,
     "--device cpu: time each op of the steps, and print at the end a table of them: time, share, wait for threads, "
     "bytes and operations beside what the machine can do, apart for steps of 1, 2-16 and more rows; serve: also at "
     "/admin/profile. The answers are the same"},
    {"hardware", NULL, 0, OPT_TEXT, GROUP_MACHINE, IN_SIMULATE, AT(hardware), "NAME|FILE", NULL, 0, 0, NULL,
     "the machine to simulate: a description of it, or NAME for models/hardware/NAME.json; its devices are the ranks"},
    {"model", NULL, 'm', OPT_TEXT, GROUP_MODEL, IN_SIMULATE, AT(model), "NAME|FILE", NULL, 0, 0, NULL,
     "with --hardware: the model's description, or NAME for models/catalog/NAME.json"},
    {"lockstep", NULL, 0, OPT_SWITCH, GROUP_MACHINE, IN_SIMULATE, AT(lockstep), NULL, "false", 0, 0, NULL,
     "with --hardware: groups begin their steps together, each padded to the largest, as vLLM's data parallelism of "
     "2025 did; off: independent replicas"},
    {"weight-shares", NULL, 0, OPT_COUNT, GROUP_MACHINE, IN_SIMULATE, AT(weight_tp), "N", "1", 1, 64, NULL,
     "with --hardware: each device holds one of N shares of the weights, so only layouts whose tp is a multiple of N "
     "run, and there is more room for KV"},
    {"weight-stages", NULL, 0, OPT_COUNT, GROUP_MACHINE, IN_SIMULATE, AT(weight_pp), "N", "1", 1, 64, NULL,
     "with --hardware: each device holds the layers of one of N stages, so all groups have N (-pp N), and there is "
     "more "
     "room for KV"},
    {"draft-acceptance", NULL, 0, OPT_NUMBER, GROUP_MACHINE, IN_SIMULATE, AT(draft_acceptance), "P", "0", 0, 1, NULL,
     "draft tokens (act.draft) are right with this chance each, as long as all before them are; 0: as "
     "often as in the recording that is replayed, else nothing is drafted"},
    {"all-reduce-scale", NULL, 0, OPT_NUMBER, GROUP_MACHINE, IN_SIMULATE, AT(link_scale), "X", "1", 0.001, 1000, NULL,
     "with --hardware: as if all-reduces had X times the bandwidth"},
    {"sim-step-us", NULL, 0, OPT_NUMBER, GROUP_MACHINE, ALL, AT(sim_step_us), "US", "1000", 0, 1e9, NULL,
     "sim: time of a step"},
    {"sim-row-us", NULL, 0, OPT_NUMBER, GROUP_MACHINE, ALL, AT(sim_row_us), "US", "1", 0, 1e9, NULL,
     "sim: time of each token in it"},

    {"trace", NULL, 0, OPT_TEXT, GROUP_TRAFFIC, IN_SIMULATE, AT(trace), "FILE|GENERATOR", NULL, 0, 0, NULL,
     "a CSV (arrival_s,input_tokens,output_tokens), an Azure CSV, Mooncake's JSON lines, what serve --record wrote; or "
     "poisson, gamma, batch, shift-bursty, flying-bursty, "
     "flying-table1, with settings like poisson:rate=4,requests=1000,input=100-2000,output=200"},
    {"what-if", NULL, 0, OPT_SWITCH, GROUP_TRAFFIC, IN_SIMULATE, AT(what_if), NULL, "false", 0, 0, NULL,
     "with a recording: steps take the time that a model fitted to the recorded steps predicts, under the recorded "
     "policy, "
     "too (without this flag its decisions are compared)"},
    {"compare", NULL, 0, OPT_SWITCH, GROUP_TRAFFIC, IN_SIMULATE, AT(compare), NULL, "false", 0, 0, NULL,
     "with a recording: give any policy the recorded events, and compare its decisions up to the first one that "
     "differs"},
    {"strict", NULL, 0, OPT_SWITCH, GROUP_TRAFFIC, IN_SIMULATE, AT(strict), NULL, "false", 0, 0, NULL,
     "with a recording and another policy: refuse what would run a layout, or so many groups at once, that the "
     "recording never shows (without this flag they are guessed, and marked)"},
    {"trace-hashes", NULL, 0, OPT_TEXT, GROUP_TRAFFIC, IN_SIMULATE, AT(trace_hashes), "FILE", NULL, 0, 0, NULL,
     "a CSV (row,hash_ids) with the ids of each row's prefix blocks of 512 tokens"},
    {"requests", NULL, 0, OPT_COUNT, GROUP_TRAFFIC, IN_SIMULATE, AT(requests), "N", "0", 0, 1e9, NULL,
     "only the first N of the trace; 0: all"},
    {"from", NULL, 0, OPT_NUMBER, GROUP_TRAFFIC, IN_SIMULATE, AT(from_s), "S", "0", 0, 3e8, NULL,
     "leave the requests of the first S seconds of the trace away; --requests and --seconds count from there"},
    {"seconds", NULL, 0, OPT_NUMBER, GROUP_TRAFFIC, IN_SIMULATE, AT(seconds), "S", "0", 0, 3e8, NULL,
     "only the requests of the first S seconds of the trace; 0: all"},
    {"rate", NULL, 0, OPT_NUMBER, GROUP_TRAFFIC, IN_SIMULATE, AT(rate), "R", "0", 0, 1e6, NULL,
     "R requests a second on average: those of the trace come closer together or further apart; 0: as they are"},
    {"nodes", NULL, 0, OPT_COUNT, GROUP_MACHINE, IN_SIMULATE, AT(nodes), "N", "1", 1, 64, NULL,
     "so many of these machines behind a router, each with a policy of its own"},
    {"router", NULL, 0, OPT_CHOICE, GROUP_MACHINE, IN_SIMULATE, AT(router), "HOW", "least-loaded", 0, 0,
     "round-robin|least-loaded|prefix-affinity",
     "which of several nodes gets a request: each in turn; the one with the fewest under way; the one that had the "
     "longest of its prefixes last"},

    {"host", NULL, 0, OPT_TEXT, GROUP_SERVER, IN_SERVE, AT(host), "ADDRESS", "127.0.0.1", 0, 0, NULL,
     "where to listen; 0.0.0.0: everywhere"},
    {"port", NULL, 0, OPT_COUNT, GROUP_SERVER, IN_SERVE, AT(port), "N", "8000", 0, 65535, NULL, "0: any free one"},
    {"shutdown-timeout", NULL, 0, OPT_COUNT, GROUP_SERVER, IN_SERVE, AT(shutdown_s), "SECONDS", "60", 0, 86400, NULL,
     "after SIGTERM or SIGINT, how long answers have to end; then they end with an error, and the process with status "
     "1. "
     "A second signal does that at once"},
    {"api-key", NULL, 0, OPT_LIST, GROUP_SERVER, IN_SERVE | SECRET, AT(api_keys), "KEY[=TENANT]", NULL, 0, 0, NULL,
     "clients must send one of these; policies and metrics see its tenant. --api-key-file keeps keys off the "
     "command line"},
    {"api-key-file", NULL, 0, OPT_LIST, GROUP_SERVER, IN_SERVE, AT(api_key_files), "FILE", NULL, 0, 0, NULL,
     "the same from a file: one KEY or KEY TENANT a line; may be given several times"},
    {"max-text-seconds", NULL, 0, OPT_NUMBER, GROUP_SERVER, IN_SERVE, AT(text_s), "S", "10", 0, 3600, NULL,
     "CPU time that reading one request may take (template, tokens; a tenth of it for bodies under 64 KiB); 0: no "
     "limit"},
    {"allowed-origins", NULL, 0, OPT_LIST, GROUP_SERVER, IN_SERVE, AT(origins), "ORIGIN", NULL, 0, 0, NULL,
     "an origin whose pages may call the server from a browser (CORS); * for any; [\"a\",\"b\"] works too"},
    {"max-connections", NULL, 0, OPT_COUNT, GROUP_SERVER, IN_SERVE, AT(max_connections), "N", "4096", 1, 1e6, NULL,
     "connections at once; beyond that, idle and slow ones are closed, then new ones get 503. /admin has its own "
     "limit"},
    {"max-connections-per-address", NULL, 0, OPT_COUNT, GROUP_SERVER, IN_SERVE, AT(connections_per_address), "N", "0",
     0, 1e6, NULL,
     "connections at once from one address (IPv6: one /64); 0: half of --max-connections. Behind a proxy, which is one "
     "address, set it to about --max-connections"},
    {"max-body-bytes", NULL, 0, OPT_COUNT, GROUP_SERVER, IN_SERVE, AT(body_bytes), "BYTES", "64MiB", 1024, 1 << 30,
     NULL, "largest body of one request"},
    {"max-body-memory", NULL, 0, OPT_COUNT, GROUP_SERVER, IN_SERVE, AT(bodies_bytes), "BYTES", "1GiB", 1024, TERA, NULL,
     "memory for all bodies that are being received; beyond that, the largest of them gets 503"},
    {"max-answer-memory", NULL, 0, OPT_COUNT, GROUP_SERVER, IN_SERVE, AT(answers_bytes), "BYTES", "1GiB", 65536, TERA,
     NULL,
     "memory for all answers that clients have not read yet; beyond that, the client with the most unread is cut off; "
     "one answer may take a quarter"},
    {"max-body-seconds", NULL, 0, OPT_COUNT, GROUP_SERVER, IN_SERVE, AT(body_s), "S", "600", 1, 86400, NULL,
     "how long receiving one request may take"},
    {"min-client-rate", NULL, 0, OPT_COUNT, GROUP_SERVER, IN_SERVE, AT(client_rate), "BYTES", "1024", 1, 1e9, NULL,
     "bytes a second, measured over 30 s: a client that sends a request or reads an answer more slowly is cut off"},
    {"batch-dir", NULL, 0, OPT_TEXT, GROUP_SERVER, IN_SERVE, AT(batch_dir), "FOLDER", NULL, 0, 0, NULL,
     "where files that clients upload for batches (/v1/files) are kept; made if need be; one server at a time"},
    {"batch-file-bytes", NULL, 0, OPT_COUNT, GROUP_SERVER, IN_SERVE, AT(batch_file_bytes), "BYTES", "32MiB", 1, 1 << 30,
     NULL, "largest file of /v1/files; with 64 KiB more it has to be within --max-body-bytes"},
    {"batch-bytes", NULL, 0, OPT_COUNT, GROUP_SERVER, IN_SERVE, AT(batch_bytes), "BYTES", "4GiB", 1, TERA, NULL,
     "all files of /v1/files together"},
    {"batch-files", NULL, 0, OPT_COUNT, GROUP_SERVER, IN_SERVE, AT(batch_files), "N", "1000", 1, 10000, NULL,
     "how many files of /v1/files there may be"},
    {"admin-listen", NULL, 0, OPT_TEXT, GROUP_SERVER, IN_SERVE, AT(admin_listen), "ADDRESS:PORT", NULL, 0, 0, NULL,
     "where /admin answers; off: nowhere (default: this machine only, the port after --port)"},
    {"admin-key", NULL, 0, OPT_LIST, GROUP_SERVER, IN_SERVE | IN_REMOTE | SECRET, AT(admin_keys), "KEY", NULL, 0, 0,
     NULL, "the key of /admin"},
    {"admin-key-file", NULL, 0, OPT_LIST, GROUP_SERVER, IN_SERVE | IN_REMOTE, AT(admin_key_files), "FILE", NULL, 0, 0,
     NULL, "the same from a file, one KEY a line"},
    {"admin-allowed-hosts", NULL, 0, OPT_LIST, GROUP_SERVER, IN_SERVE, AT(admin_hosts), "NAME", NULL, 0, 0, NULL,
     "further host names that /admin answers to, besides localhost, addresses and the host of --admin-listen; * for "
     "any; "
     "may be given several times"},

    {"log-level", NULL, 0, OPT_CHOICE, GROUP_LOGS, ALL, AT(log_level), "LEVEL", "info", 0, 0,
     "debug|info|warn|warning|error", NULL},
    {"log-format", NULL, 0, OPT_CHOICE, GROUP_LOGS, ALL, AT(log_format), "FORMAT", "text", 0, 0, "text|json", NULL},
    {"disable-log-stats", NULL, 0, OPT_SWITCH, GROUP_LOGS, IN_SERVE, AT(disable_log_stats), NULL, "false", 0, 0, NULL,
     "no line of numbers every 10 s"},
    {"enable-log-requests", NULL, 0, OPT_SWITCH, GROUP_LOGS, IN_SERVE, AT(log_requests), NULL, "false", 0, 0, NULL,
     "a line for each request"},
    {"request-history", NULL, 0, OPT_COUNT, GROUP_LOGS, IN_SERVE, AT(request_history), "N", "2000", 0, 1000000, NULL,
     "the timelines of so many requests that have ended are kept for /admin/requests: about 1 KB each, at most 6; 0: "
     "of "
     "none, nor of those that are live"},
    {"decision-log-memory", NULL, 0, OPT_COUNT, GROUP_LOGS, IN_SERVE, AT(decision_bytes), "BYTES", "4MiB", 0, 1e10,
     NULL, "for the last decisions and the facts that they rest on, shown by /admin/decisions; 0: none are logged"},
    {"record", NULL, 0, OPT_TEXT, GROUP_LOGS, IN_SERVE, AT(record), "FILE", NULL, 0, 0, NULL,
     "record arrivals, decisions and step times (no text) for moonshift simulate --trace FILE; the file must not exist "
     "yet"},
    {"what-if-memory", NULL, 0, OPT_COUNT, GROUP_LOGS, IN_SERVE, AT(what_if_bytes), "BYTES", "16MiB", 0, 1e10, NULL,
     "for the last of the traffic (as in --record; no text), on which moonshift policy what-if tries a policy; at "
     "least "
     "1 MiB; 0: nothing is kept"},
    {"dry-run", NULL, 0, OPT_SWITCH, GROUP_LOGS, IN_SERVE, AT(dry_run), NULL, "false", 0, 0, NULL,
     "check everything, print what would run, and exit"},
    {"config", NULL, 0, OPT_TEXT, GROUP_LOGS, ALL, AT(config), "FILE", NULL, 0, 0, NULL,
     "lines \"flag-name: value\"; the command line wins"},

    {"system", NULL, 0, OPT_TEXT, GROUP_CHAT, IN_RUN, AT(system), "TEXT", NULL, 0, 0, NULL, "the system message"},
    {"max-tokens", NULL, 'n', OPT_COUNT, GROUP_CHAT, IN_RUN, AT(max_tokens), "N", "0", 0, 1 << 30, NULL,
     "tokens of an answer; 0: as many as fit"},
    {"temperature", NULL, 0, OPT_NUMBER, GROUP_CHAT, IN_RUN, AT(temperature), "T", "0.7", 0, 100, NULL,
     "0: always the most likely token"},
    {"top-p", NULL, 0, OPT_NUMBER, GROUP_CHAT, IN_RUN, AT(top_p), "P", "0.95", 1e-6, 1, NULL, NULL},
    {"top-k", NULL, 0, OPT_COUNT, GROUP_CHAT, IN_RUN, AT(top_k), "K", "0", 0, 1 << 30, NULL, "0: all"},
    {"min-p", NULL, 0, OPT_NUMBER, GROUP_CHAT, IN_RUN, AT(min_p), "P", "0", 0, 1, NULL, NULL},
    {"raw", NULL, 0, OPT_SWITCH, GROUP_CHAT, IN_RUN, AT(raw), NULL, "false", 0, 0, NULL,
     "continue the text as it is, without a chat template"},
    {"history", NULL, 0, OPT_TEXT, GROUP_CHAT, IN_RUN, AT(history), "FILE", NULL, 0, 0, NULL,
     "where typed lines are kept; off: nowhere (default: moonshift/history in $XDG_STATE_HOME or ~/.local/state)"},

    {"input-file", NULL, 'i', OPT_TEXT, GROUP_RESULTS, IN_BATCH, AT(input), "FILE", NULL, 0, 0, NULL,
     "requests, a line each, as for OpenAI's batches: custom_id, method, url, body"},
    {"output-file", NULL, 'o', OPT_TEXT, GROUP_RESULTS, IN_BATCH, AT(output), "FILE", NULL, 0, 0, NULL,
     "answers, a line each, in the order of the input; a job that was stopped goes on with the same command"},
    {"error-file", NULL, 0, OPT_TEXT, GROUP_RESULTS, IN_BATCH, AT(errors), "FILE", NULL, 0, 0, NULL,
     "a line for each request that was refused (default: the output file's name and .errors)"},

    {"file", NULL, 0, OPT_TEXT, GROUP_RESULTS, IN_WHY, AT(why_file), "FILE", NULL, 0, 0, NULL,
     "what GET /admin/requests answered; - is stdin"},
    {"slowest", NULL, 0, OPT_COUNT, GROUP_RESULTS, IN_WHY, AT(slowest), "N", "5", 1, 100, NULL,
     "without an ID: so many, by time to first token"},
    {"recording", NULL, 0, OPT_TEXT, GROUP_TRAFFIC, IN_REVISIT, AT(recording), "FILE", NULL, 0, 0, NULL,
     "what serve --record wrote: it is replayed, and no server is asked"},
    {"at", NULL, 0, OPT_NUMBER, GROUP_TRAFFIC, IN_STEP, AT(at_s), "SECONDS", "0", 0, 1e9, NULL,
     "instead of N: the first decision so many seconds after the recording's start, or later"},
    {"from", NULL, 0, OPT_TEXT, GROUP_RESULTS, IN_NEW, AT(template), "NAME|FILE", NULL, 0, 0, NULL,
     "copy this policy, with the libraries that it names, instead of the one to begin with"},
    {"server", NULL, 0, OPT_TEXT, GROUP_SERVER, IN_REMOTE, AT(server), "URL", NULL, 0, 0, NULL,
     "the admin routes of a running server (default: that of --client-config, else http://127.0.0.1:8001)"},
    {"client-config", NULL, 0, OPT_TEXT, GROUP_SERVER, IN_REMOTE, AT(client_config), "FILE", NULL, 0, 0, NULL,
     "an object with \"server\" and \"key\", for you alone to read (default: moonshift/client.json in "
     "$XDG_CONFIG_HOME or ~/.config, if it is there)"},
    {"name", NULL, 0, OPT_TEXT, GROUP_SCHEDULING, IN_PUSH | IN_WHAT_IF, AT(as_name), "NAME", NULL, 0, 0, NULL,
     "what the policy is called (default: the file's name)"},
    {"activate", NULL, 0, OPT_SWITCH, GROUP_SCHEDULING, IN_PUSH, AT(activate), NULL, "true", 0, 0, NULL,
     "it is tried and kept, and the live one stays"},
    {"try", NULL, 0, OPT_SWITCH, GROUP_SCHEDULING, IN_PUSH, AT(try_first), NULL, "false", 0, 0, NULL,
     "first what-if on the server's last traffic: a policy that fails in it is not sent"},
    {"seconds", NULL, 0, OPT_NUMBER, GROUP_TRAFFIC, IN_PUSH | IN_WHAT_IF, AT(seconds), "S", "0", 0, 1e7, NULL,
     "of the traffic that the server keeps, the last S seconds; 0: all"},
    {"sha", NULL, 0, OPT_TEXT, GROUP_SCHEDULING, IN_SHOW | IN_ACTIVATE | IN_SHADOW_OF | IN_CANARY_OF | IN_WHAT_IF,
     AT(sha), "SHA", NULL, 0, 0, NULL,
     "the version with that SHA-256, of which 8 digits are enough (default: the newest of that name)"},
    {"groups", NULL, 0, OPT_TEXT, GROUP_SCHEDULING, IN_CANARY_OF, AT(groups), "ID,ID", NULL, 0, 0, NULL,
     "the groups that it decides for, as moonshift state names them"},
    {"for", NULL, 0, OPT_NUMBER, GROUP_SCHEDULING, IN_SHADOW_OF | IN_CANARY_OF, AT(for_s), "SECONDS", "600", 1, 86400,
     NULL, "how long it goes on beside the live one"},
    {"end", NULL, 0, OPT_SWITCH, GROUP_SCHEDULING, IN_SHADOW_OF | IN_CANARY_OF, AT(end_beside), NULL, "false", 0, 0,
     NULL, "the one that goes on beside the live one ends"},
    {"to", NULL, 0, OPT_TEXT, GROUP_SCHEDULING, IN_ROLLBACK_OF, AT(to), "SHA", NULL, 0, 0, NULL,
     "any earlier version, by 8 or more digits of its SHA-256 (default: the one before the live one)"},
    {"force", NULL, 0, OPT_SWITCH, GROUP_SCHEDULING, IN_PUSH | IN_ACTIVATE | IN_ROLLBACK_OF, AT(force), NULL, "false",
     0, 0, NULL, "also a version that is in quarantine"},
    {"hold-to-prediction", NULL, 0, OPT_SWITCH, GROUP_SCHEDULING, IN_PUSH | IN_ACTIVATE, AT(hold_to_prediction), NULL,
     "false", 0, 0, NULL,
     "the policy goes back by itself, too, when it does not bring what a what-if of the last hour predicted; without "
     "one it is refused"},
    {"set", NULL, 0, OPT_LIST, GROUP_SCHEDULING, IN_LIMITS_OF, AT(set), "NAME=VALUE", NULL, 0, 0, NULL,
     "a limit and its new value, like max-num-seqs=64; may be given several times, and all are set or none"},
    {"verify", NULL, 0, OPT_SWITCH, GROUP_RESULTS, IN_LOG, AT(verify), NULL, "false", 0, 0, NULL,
     "is every line bound to the one before it?"},
    {"json", NULL, 0, OPT_SWITCH, GROUP_RESULTS, IN_REMOTE | IN_STEP, AT(as_json), NULL, "false", 0, 0, NULL,
     "print JSON, for scripts: what the server answered, or would have; of diff and step what they found"},

    {"watch", NULL, 0, OPT_SWITCH, GROUP_RESULTS, IN_TEST, AT(watch), NULL, "false", 0, 0, NULL,
     "run again whenever these files change, until Ctrl-C"},
    {"cpath", NULL, 0, OPT_SWITCH, GROUP_RESULTS, IN_PATH, AT(cpath), NULL, "false", 0, 0, NULL,
     "print only the pattern, as for busted --cpath"},

    {"hardware", NULL, 0, OPT_TEXT, GROUP_MACHINE, IN_REPRODUCE, AT(hardware), "NAME|FILE", NULL, 0, 0, NULL,
     "describes the machine in the runs that leave it open (default: h200x8-fitted)"},
    {"list", NULL, 0, OPT_TEXT, GROUP_TRAFFIC, IN_REPRODUCE, AT(list), "NAME|FILE", NULL, 0, 0, NULL,
     "what was published, and the runs that answer it, or NAME for models/papers/NAME.json (default: reproduce)"},
    {"only", NULL, 0, OPT_LIST, GROUP_TRAFFIC, IN_REPRODUCE, AT(only), "WORD", NULL, 0, 0, NULL,
     "only numbers whose paper, place, description or formula has WORD; several times: any of them"},
    {"bars", NULL, 0, OPT_SWITCH, GROUP_RESULTS, IN_REPRODUCE, AT(bars), NULL, "false", 0, 0, NULL,
     "only numbers that have a bar, and exit status 1 if one is missed"},
    {"markdown", NULL, 0, OPT_TEXT, GROUP_RESULTS, IN_REPRODUCE, AT(markdown), "FILE", NULL, 0, 0, NULL,
     "write the results as a Markdown table, too"},
    {"jobs", NULL, 'j', OPT_COUNT, GROUP_MACHINE, SEARCH | IN_ONE, AT(jobs), "N", "0", 0, 64, NULL,
     "simulations at once; 0: as many as there are cores"},
    {"objective", NULL, 0, OPT_LIST, GROUP_RESULTS, IN_TUNE, AT(objectives), "METRIC", NULL, 0, 0, NULL,
     "the metric to optimise, like \"p99 TTFT\" or throughput; with two, the result is their Pareto front"},
    {"subject-to", NULL, 0, OPT_LIST, GROUP_RESULTS, IN_TUNE, AT(constraints), "\"METRIC <= VALUE\"", NULL, 0, 0, NULL,
     "a constraint, like \"p99 TPOT <= 50ms\" or \"throughput >= 20000\"; may be given several times"},
    {"param", NULL, 0, OPT_LIST, GROUP_SCHEDULING, IN_TUNE, AT(params), "NAME[=LOW..HIGH]", NULL, 0, 0, NULL,
     "search only these params, and within LOW..HIGH; needed where the policy declares no bounds"},
    {"budget", NULL, 0, OPT_COUNT, GROUP_RESULTS, IN_TUNE, AT(budget), "N", "48", 2, 100000, NULL,
     "simulations of the whole trace to spend"},
    {"budget", NULL, 0, OPT_COUNT, GROUP_RESULTS, IN_PLAN, AT(budget), "N", "80", 2, 100000, NULL,
     "simulations to spend"},
    {"budget", NULL, 0, OPT_COUNT, GROUP_RESULTS, IN_REGRET, AT(budget), "N", "40", 0, 100000, NULL,
     "simulations of schedules to spend, beside those of policies and fixed partitions"},
    {"metric", NULL, 0, OPT_LIST, GROUP_RESULTS, IN_REGRET, AT(metrics), "METRIC", "mean completion", 0, 0, NULL,
     "what regret is counted in, like \"p99 TTFT\" or throughput; with several, the budget is shared among them"},
    {"bins", NULL, 0, OPT_COUNT, GROUP_RESULTS, IN_REGRET, AT(bins), "N", "24", 1, 256, NULL,
     "stretches of the trace's time, in each of which a schedule has one partition"},
    {"schedule-out", NULL, 0, OPT_TEXT, GROUP_RESULTS, IN_REGRET, AT(schedule_out), "FILE", NULL, 0, 0, NULL,
     "where the best schedule found goes, as a policy for moonshift simulate on this trace"},
    {"params-out", NULL, 0, OPT_TEXT, GROUP_RESULTS, IN_TUNE, AT(params_out), "FILE", NULL, 0, 0, NULL,
     "where the best params go, for --policy-params-file of serve and simulate"},
    {"max-devices", NULL, 0, OPT_COUNT, GROUP_RESULTS, IN_PLAN, AT(max_devices), "N", "64", 1, 4096, NULL,
     "with objectives and a rate: how many devices a plan may have at most"},
    {"price", NULL, 0, OPT_NUMBER, GROUP_RESULTS, IN_PLAN, AT(price), "X", "0", 0, 1e6, NULL,
     "of a device for an hour, in any currency: plans then say what a million tokens cost"},
    {"shape", NULL, 0, OPT_TEXT, GROUP_TRAFFIC, IN_PLAN, AT(shape), "in=N,out=N,rate=R|batch=N", NULL, 0, 0, NULL,
     "instead of a trace: tokens of prompts and answers (4096 or 2000-4000), and requests a second or all at once"},

    {"samples", NULL, 0, OPT_COUNT, GROUP_RESULTS, IN_ONE | IN_PLAN, AT(samples), "N", "0", 0, 1000, NULL,
     "N simulations of each policy, with errors of kernels, generated traffic and descriptions of the machine drawn by "
     "--seed: a 90% band for each figure, and which policy is better on the same luck; 0: no bands"},
    {"sample", NULL, 0, OPT_COUNT, GROUP_RESULTS, IN_ONE, AT(sample), "I", "0", 0, 1000, NULL,
     "what the I-th of --samples draws, alone; 0: nothing is drawn"},
    {"slo-ttft-ms", "slo-ttft", 0, OPT_NUMBER, GROUP_RESULTS, IN_SIMULATE, AT(slo_ttft_ms), "MS", "0", 0, 1e9, NULL,
     "goodput counts requests whose first token came within MS; 0: no limit"},
    {"slo-tpot-ms", "slo-tpot", 0, OPT_NUMBER, GROUP_RESULTS, IN_SIMULATE, AT(slo_tpot_ms), "MS", "0", 0, 1e9, NULL,
     "goodput counts requests whose further tokens took at most MS each; 0: no limit"},
    {"json", NULL, 0, OPT_TEXT, GROUP_RESULTS, IN_SIMULATE, AT(json), "FILE", NULL, 0, 0, NULL,
     "write all results as JSON"},
    {"request-log", NULL, 0, OPT_TEXT, GROUP_RESULTS, IN_SIMULATE, AT(request_log), "FILE", NULL, 0, 0, NULL,
     "a CSV with a line for each request of each run"},
    {"plots", NULL, 0, OPT_TEXT, GROUP_RESULTS, IN_SIMULATE, AT(plots), "FOLDER", NULL, 0, 0, NULL,
     "SVG pictures: throughput, queue and KV over time, layouts over time, latency distributions"},
};

#define QUANT "the types stored in the GGUF file, or in the folder, are used as they are"

static const struct opt_foreign foreign[] = {
    {"decode-context-parallel-size|-dcp", true, "1", "the KV of a sequence is split by heads, not by tokens"},
    {"enable-shift-parallel", false, NULL, "it is a policy here: --policy shift --ranks N"},
    {"shift-parallel-threshold", true, NULL,
     "it is a parameter of the policy here: --policy shift --policy-param threshold=N"},
    {"enable-expert-parallel|-ep", false, NULL, "mixture-of-experts models are not offered"},
    {"distributed-executor-backend", true, NULL, "there is one process"},
    {"api-server-count|-asc", true, "1", "there is one front"},
    {"enable-lora", false, NULL, "LoRA adapters are not offered"},
    {"lora-modules", true, NULL, "LoRA adapters are not offered"},
    {"max-loras", true, NULL, "LoRA adapters are not offered"},
    {"quantization|-q", true, "gguf", QUANT},
    {"dtype", true, "auto", QUANT},
    {"tokenizer-mode", true, "auto", "there is one tokenizer"},
    {"hf-overrides", true, NULL, "the model's config is used as it is"},
    {"trust-remote-code", false, "*", NULL},
    {"revision", true, NULL, "models are local files"},
    {"download-dir", true, NULL, "models are local files"},
    {"generation-config", true, "vllm", "sampling defaults are those of the API"},
    {"enable-auto-tool-choice", false, "*", NULL},
    {"structured-outputs-config", true, NULL, "answers are guided by one backend, which needs no settings"},
    {"compilation-config|-cc|-O", true, "0", "there is nothing to compile"},
    {"enable-chunked-prefill", false, "*", NULL},
    {"no-enable-chunked-prefill", false, NULL, "prompts longer than --max-num-batched-tokens always go in chunks"},
    {"cpu-offload-gb", true, "0", "weights lie in one memory"},
    {"swap-space", true, "0", "it is called --host-kv-memory here, and takes bytes"},
    {"kv-transfer-config", true, NULL, "KV transfer between servers is not offered"},
    {"kv-offloading-size", true, NULL, "it is called --host-kv-memory here, and takes bytes"},
    {"scheduler-cls", true, NULL, "write a policy in Lua and name it with --policy"},
    {"uds", true, NULL, "only TCP is offered; use --host and --port"},
    {"ssl-keyfile", true, NULL, "TLS is not offered; put a proxy in front"},
    {"ssl-certfile", true, NULL, "TLS is not offered; put a proxy in front"},
    {"root-path", true, NULL, "routes lie at the root; put a proxy in front"},
    {"uvicorn-log-level", true, NULL, "use --log-level"},
    {"disable-uvicorn-access-log", false, "*", NULL},
    {"enable-sleep-mode", false, NULL, "sleep mode is not offered"},
    {"limit-mm-per-prompt", true, NULL, "only text models are offered"},
    {"task|runner", true, "generate",
     "an encoder is known by its files: moonshift serve ENCODER, or beside a model --embedding-model"},
    {"ctx-size", true, NULL, "it is called --max-model-len (or -c) here"},
    {"parallel|-np", true, NULL, "it is called --max-num-seqs here"},
    {"n-gpu-layers|-ngl", true, NULL,
     "all layers lie on one kind of device: --device cuda takes GPUs, --device cpu none"},
};

static const char *const group_names[GROUP_COUNT] = {
    "Model", "Scheduling", "Memory", "Machine", "Traffic", "Server", "Logs and checks", "Answers", "Results",
};

const struct opt_row *opts_rows(int *n)
{
    *n = (int)(sizeof rows / sizeof *rows);
    return rows;
}

const struct opt_foreign *opts_foreign(int *n)
{
    *n = (int)(sizeof foreign / sizeof *foreign);
    return foreign;
}

const char *opts_group_name(enum opt_group g)
{
    return group_names[g];
}

int opts_where(enum opts_command c)
{
    static const int bits[] = {[CMD_SERVE] = IN_SERVE,
                               [CMD_RUN] = IN_RUN,
                               [CMD_BATCH] = IN_BATCH,
                               [CMD_POLICY_CHECK] = IN_CHECK,
                               [CMD_POLICY_TEST] = IN_TEST,
                               [CMD_POLICY_WHY] = IN_WHY,
                               [CMD_POLICY_STEP] = IN_STEP,
                               [CMD_POLICY_NEW] = IN_NEW,
                               [CMD_LUA_PATH] = IN_PATH,
                               [CMD_SIMULATE] = IN_SIMULATE | IN_ONE,
                               [CMD_REPRODUCE] = IN_REPRODUCE,
                               [CMD_TUNE] = IN_SIMULATE | IN_TUNE,
                               [CMD_PLAN] = IN_SIMULATE | IN_PLAN,
                               [CMD_REGRET] = IN_SIMULATE | IN_REGRET,
                               [CMD_POLICY_PUSH] = IN_PUSH,
                               [CMD_POLICY_LIST] = IN_LIST,
                               [CMD_POLICY_SHOW] = IN_SHOW,
                               [CMD_POLICY_DIFF] = IN_DIFF,
                               [CMD_POLICY_ACTIVATE] = IN_ACTIVATE,
                               [CMD_POLICY_ROLLBACK] = IN_ROLLBACK_OF,
                               [CMD_POLICY_LOG] = IN_LOG,
                               [CMD_POLICY_SHADOW] = IN_SHADOW_OF,
                               [CMD_POLICY_CANARY] = IN_CANARY_OF,
                               [CMD_LIMITS] = IN_LIMITS_OF,
                               [CMD_STATE] = IN_STATE_OF,
                               [CMD_TOP] = IN_TOP,
                               [CMD_POLICY_WHAT_IF] = IN_WHAT_IF,
                               [CMD_HELP] = IN_CHECK,
                               [CMD_VERSION] = IN_CHECK};
    return bits[c];
}

const char *opts_command_name(enum opts_command c)
{
    static const char *const names[] = {"serve",
                                        "run",
                                        "batch",
                                        "policy check",
                                        "policy test",
                                        "policy why",
                                        "policy step",
                                        "policy new",
                                        "lua-path",
                                        "simulate",
                                        "reproduce",
                                        "tune",
                                        "plan",
                                        "regret",
                                        "policy push",
                                        "policy list",
                                        "policy show",
                                        "policy diff",
                                        "policy activate",
                                        "policy rollback",
                                        "policy log",
                                        "policy shadow",
                                        "policy canary",
                                        "policy what-if",
                                        "limits",
                                        "state",
                                        "top"};
    return c < CMD_HELP ? names[c] : "help";
}
