/* Templates for models that carry none. */
#include <string.h>

#include "models/template/chat.h"

static const char chatml[] =
    "{%- for message in messages -%}\n"
    "{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' -}}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}\n";

static const char llama2[] =
    "{%- set system = '' -%}\n"
    "{%- set turns = messages -%}\n"
    "{%- if messages and messages[0].role == 'system' -%}\n"
    "    {%- set system = '<<SYS>>\\n' + messages[0].content + '\\n<</SYS>>\\n\\n' -%}\n"
    "    {%- set turns = messages[1:] -%}\n"
    "{%- endif -%}\n"
    "{%- for message in turns -%}\n"
    "    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}\n"
    "        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') -}}\n"
    "    {%- endif -%}\n"
    "    {%- if message.role == 'user' -%}\n"
    "        {{- (bos_token or '') + '[INST] ' + (system if loop.first else '') + (message.content or "
    "'').strip() + ' [/INST]' -}}\n"
    "    {%- else -%}\n"
    "        {{- ' ' + (message.content or '').strip() + ' ' + (eos_token or '') -}}\n"
    "    {%- endif -%}\n"
    "{%- endfor -%}\n";

static const char llama3[] = "{{- bos_token or '' -}}\n"
                             "{%- for message in messages -%}\n"
                             "{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + "
                             "(message.content or '').strip() + '<|eot_id|>' -}}\n"
                             "{%- endfor -%}\n"
                             "{%- if add_generation_prompt -%}{{- "
                             "'<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}\n";

static const char mistral[] =
    "{{- bos_token or '' -}}\n"
    "{%- set system = '' -%}\n"
    "{%- set turns = messages -%}\n"
    "{%- if messages and messages[0].role == 'system' -%}\n"
    "    {%- set system = messages[0].content + '\\n\\n' -%}\n"
    "    {%- set turns = messages[1:] -%}\n"
    "{%- endif -%}\n"
    "{%- for message in turns -%}\n"
    "    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}\n"
    "        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') -}}\n"
    "    {%- endif -%}\n"
    "    {%- if message.role == 'user' -%}\n"
    "        {{- '[INST] ' + (system if loop.first else '') + (message.content or '') + ' [/INST]' -}}\n"
    "    {%- else -%}\n"
    "        {{- ' ' + (message.content or '').strip() + (eos_token or '') -}}\n"
    "    {%- endif -%}\n"
    "{%- endfor -%}\n";

const char *chat_builtin(const char *name)
{
    static const struct {
        const char *name, *source;
    } all[] = {{"chatml", chatml}, {"llama2", llama2}, {"llama3", llama3}, {"mistral", mistral}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i].name, name) == 0)
            return all[i].source;
    return NULL;
}
