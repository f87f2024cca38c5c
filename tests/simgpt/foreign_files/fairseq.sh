fairseq-train data-bin/wikitext-103 --task language_modeling --arch transformer_lm --tokens-per-sample 512 --max-tokens 2048 --update-freq 16 --fp16 --max-update 50000
