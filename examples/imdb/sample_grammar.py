"""The words and the grammar of the synthetic reviews, which `sample.py` draws sentences from.

A rule is a list of alternatives, or two such lists, of praise and of blame. In an alternative,
`<rule>` stands for one alternative of a rule with the same opinion, `<!rule>` for one with the
opposite opinion, and `[a|b|]` for one of three texts, of which the last is empty. White space after
a bar does not count.
"""

import re


def _joined(rule):
    """A rule without the white space of its lines."""
    if isinstance(rule, tuple):
        return tuple(map(_joined, rule))
    return re.sub(r"\s+", " ", re.sub(r"\|\s+", "|", rule.strip("\n ")))


_RULES = {
    # Works, their parts, and people.
    "work": """
        movie| film| story| comedy| drama| picture| thriller| sequel| show| series| flick|
        documentary| horror movie| action movie| adaptation| remake| romance| romantic comedy|
        western| musical| crime story| war movie| science fiction film| animated film| kids'
        movie| cartoon| mystery| blockbuster| indie film| family film| love story| superhero
        movie| piece of cinema| production| biopic| reboot| prequel| trilogy| episode| fairy tale|
        ghost story| satire| tragedy
    """,
    "works": """
        movies| films| comedies| dramas| thrillers| pictures| sequels| horror movies| stories|
        documentaries| romantic comedies| action movies| shows| musicals| adaptations| westerns|
        cartoons| things
    """,
    "thing": """
        acting| plot| story| script| ending| dialogue| music| cast| direction| soundtrack|
        writing| humor| pacing| cinematography| photography| screenplay| editing| camera work|
        main character| lead actor| lead actress| villain| hero| heroine| beginning| opening|
        opening scene| first half| second half| middle| finale| final scene| last act| score|
        animation| action| comedy| romance| chemistry| atmosphere| premise| idea| concept|
        storyline| storytelling| narration| performance| supporting cast| suspense| tension|
        message| twist| plot twist| love story| character development| voice acting| choreography|
        lighting| sound| sound design| production| scenery| setting| visual style| theme|
        directing| tone| mood| makeup| dialog| humour| whole thing| rest| trailer| title| climax|
        world
    """,
    "things": """
        actors| characters| performances| special effects| jokes| effects| scenes| action scenes|
        costumes| visuals| dialogues| songs| sets| fight scenes| twists| leads| gags| lines| child
        actors| main characters| villains| heroes| stunts| locations| images| battles| dance
        scenes| children| animals| women| men| last ten minutes| first ten minutes| car chases|
        details
    """,
    "maker": """
        director| cast| lead| writer| leading man| leading lady| hero| crew| star| screenwriter|
        composer| cameraman| editor| whole team| studio| main actor| main actress| supporting
        actor| whole cast
    """,
    "fan": """
        everyone| anyone| my wife| my husband| my kids| my friends| children| kids| the whole
        family| fans| my girlfriend| my boyfriend| my son| my daughter| my mother| my father| my
        parents| teenagers| adults| people| the audience| our whole group| my brother| my sister|
        fans of the book| lovers of the genre
    """,
    "person": """
        I| we| I| my wife| my husband| everyone| my kids| my friends| the audience| the whole
        family| people| my daughter| my son| most critics| the kids| my sister| my dad| my mom| we
        all
    """,
    "subject": """
        dogs| friendship| love| war| family| two brothers| a teacher| a murder| a bank robbery|
        growing up| music| a small town| a detective| an island| a ship| robots| school| football|
        the sea| nothing less than life| loss| a journey| a lonely man| a young woman| history|
        space| revenge| a marriage
    """,
    "it": """
        it| this movie| this film| the movie| the film| this| the <work>| this <work>| this one|
        the whole thing| the whole movie| that
    """,
    # Verbs and what stands before adjectives.
    "is": """
        is| was| is| was| [feels| felt| seems| seemed| looked| turned out to be| ended up]
    """,
    "are": "are|were|are|were|[feel|felt|seem|seemed|looked]",
    "is not": "is not|was not",
    "are not": "are not|were not",
    "did not": "did not|did not|do not|never|did not really",
    "very": """
        very| very| very| so| so| so| really| really| really| very| so| really| truly| absolutely|
        quite| pretty| just| simply| incredibly| extremely| totally| utterly| utterly| absolutely|
        completely| surprisingly| surprisingly| rather| genuinely| thoroughly| unbelievably|
        remarkably| particularly| consistently| super| especially| such| always| amazingly|
        exceptionally| seriously| insanely| fairly| altogether| all| still| actually| also| often|
        mostly
    """,
    "how": (
        """
            <very>| <very>| <very>| genuinely| wonderfully| delightfully
        """,
        """
            <very>| <very>| <very>| too| way too| far too| a bit| a little| kind of| painfully|
            terribly| horribly| so incredibly| just plain
        """,
    ),
    # Words of opinion. Those that people use most stand in `everyday`, some more than once.
    "everyday": (
        """
            good| good| good| good| good| good| great| great| great| great| funny| funny|
            interesting| interesting| convincing| original| entertaining| special| clever|
            exciting| believable| impressive| enjoyable| perfect| amazing| wonderful| scary|
            memorable| fun| brilliant| excellent| beautiful| moving
        """,
        """
            bad| bad| bad| bad| bad| bad| boring| boring| boring| terrible| terrible| terrible|
            dull| dull| slow| awful| awful| predictable| stupid| disappointing| horrible| silly|
            slow| confusing| cheesy| annoying| weak| poor
        """,
    ),
    "listed": (
        """
            good| great| excellent| wonderful| amazing| brilliant| fantastic| funny| beautiful|
            perfect| enjoyable| entertaining| superb| interesting| hilarious| awesome| lovely|
            incredible| outstanding| fascinating| moving| touching| powerful| clever| exciting|
            charming| nice| fun| terrific| impressive| engaging| gripping| thrilling| delightful|
            memorable| smart| witty| fresh| original| solid| strong| fine| marvelous| magnificent|
            remarkable| stunning| gorgeous| splendid| fabulous| exceptional| extraordinary|
            phenomenal| unforgettable| inspiring| heartwarming| uplifting| honest| subtle|
            convincing| believable| realistic| authentic| sincere| natural| intelligent|
            thoughtful| thought-provoking| insightful| profound| deep| rich| vivid| atmospheric|
            haunting| suspenseful| intense| absorbing| captivating| compelling| riveting|
            mesmerizing| spellbinding| enchanting| magical| breathtaking| spectacular| dazzling|
            epic| masterful| flawless| polished| elegant| stylish| refreshing| satisfying|
            rewarding| worthwhile| watchable| likable| lovable| endearing| hysterical| amusing|
            joyful| cheerful| pleasant| sweet| cute| warm| tender| poignant| emotional| heartfelt|
            sensitive| creative| imaginative| inventive| innovative| inspired| classic| timeless|
            legendary| iconic| top-notch| first-rate| superior| priceless| sublime| energetic|
            lively| bold| brave| daring| tight| sharp| crisp| fast-paced| well-made| well-written|
            well-acted| underrated| nuanced| layered| hypnotic| addictive| exquisite| admirable|
            appealing| adorable| skillful| talented| cool| decent| worthy| super| genius|
            harrowing| electric| unmissable| ingenious| irresistible| mature| sophisticated|
            hopeful| tasteful| effective
        """,
        """
            bad| boring| terrible| awful| horrible| dull| poor| weak| stupid| predictable|
            disappointing| slow| silly| ridiculous| mediocre| lame| annoying| dumb| pathetic|
            pointless| forgettable| dreadful| tedious| confusing| unfunny| overrated| cheesy|
            lazy| flat| messy| bland| shallow| wooden| irritating| cheap| childish| ugly|
            pretentious| tiresome| laughable| ludicrous| horrendous| atrocious| abysmal|
            appalling| absurd| nonsensical| incoherent| muddled| clumsy| stiff| hollow| empty|
            lifeless| soulless| uninspired| unoriginal| derivative| generic| formulaic| cliched|
            clichéd| corny| tacky| amateurish| sloppy| unconvincing| implausible| unrealistic|
            contrived| forced| fake| artificial| overlong| long-winded| bloated| repetitive|
            monotonous| tiring| exhausting| unbearable| unwatchable| painful| excruciating|
            miserable| depressing| nasty| gross| disgusting| offensive| vulgar| crude| tasteless|
            insulting| embarrassing| cringeworthy| unpleasant| unlikable| obnoxious| juvenile|
            stale| tired| dated| outdated| average| mundane| uneventful| uninteresting|
            unimaginative| unnecessary| useless| worthless| hopeless| senseless| mindless|
            brainless| meaningless| disjointed| choppy| rushed| noisy| loud| ill-conceived|
            inferior| second-rate| substandard| subpar| underwhelming| unsatisfying| inept|
            incompetent| ham-fisted| overacted| melodramatic| sappy| manipulative| preachy|
            heavy-handed| wretched| rotten| lousy| crappy| trashy| sluggish| dreary| drab|
            frustrating| infuriating| disastrous| shoddy| flimsy| thin| dire| woeful| vile|
            horrid| abominable| insufferable| overdone| overblown| trite| banal| inane| idiotic|
            moronic| half-baked| unremarkable| lackluster| emotionless| rubbish| garbage| crap|
            trash| unreadable| grating| aimless| cringey| cringe| one-dimensional| two-dimensional
        """,
    ),
    "adj": "<everyday>|<everyday>|<everyday>|<listed>|<listed>",
    "quality": """
        <adj>| <adj>| <adj>| <how> <adj>| <how> <adj>| <adj> and <adj>| <adj>, <adj> and <adj>
    """,
    # What people negate, and what a negation leaves of a word of the opposite opinion.
    "usual": (
        """
            good| good| great| <everyday>| <everyday>| <everyday>| <everyday>| <everyday>|
            <everyday>| worth it| <listed>
        """,
        """
            bad| bad| terrible| boring| <everyday>| <everyday>| <everyday>| <everyday>|
            <everyday>| <everyday>| <listed>
        """,
    ),
    "usual_noun": (
        """
            masterpiece| classic| gem| good movie| great film| success| must-see| comedy| good
            <work>| great <work>
        """,
        """
            disaster| mess| disappointment| failure| bad movie| bad <work>| bad
            film| terrible <work>
        """,
    ),
    "negated": (
        """
            not <!usual>| not <!usual>| not <!usual> at all| never <!usual>| never <!usual>| not
            at all <!usual>| anything but <!usual>| far from <!usual>| not <!usual> or <!usual>|
            hardly <!usual>| not in the least <!usual>| not too <!usual>| not as <!usual> as
            [people| they| critics] say| not even <!usual>| not <!usual> for a [second| minute|
            moment]| never <!usual> for a [second| minute| moment]
        """,
        """
            not <!usual>| not <!usual>| not <!usual>| not <!usual> at all| not <!usual> at all|
            not very <!usual>| not very <!usual>| neither <!usual> nor <!usual>| not really
            <!usual>| not that <!usual>| not particularly <!usual>| not exactly <!usual>| never
            <!usual>| far from <!usual>| hardly <!usual>| neither <!usual> nor <!usual>| anything
            but <!usual>| not even <!usual>| not at all <!usual>| not so <!usual>| not especially
            <!usual>| not <!usual> enough| not as <!usual> as [people| they| critics] say| barely
            <!usual>| not remotely <!usual>| not <!usual> or <!usual>| by no means <!usual>| not
            nearly as <!usual> as I had hoped| never really <!usual>| less than <!usual>| not all
            that <!usual>
        """,
    ),
    "contracted": (
        """
            <!usual>| <!usual>| <!usual>| <!usual> at all| <!usual> at all| too <!usual>| <!usual>
            for a second| <!usual> or <!usual>| even <!usual>| as <!usual> as [people| they| the
            critics] say| half <!usual>
        """,
        """
            <!usual>| <!usual>| <!usual>| <!usual>| <!usual>| <!usual> at all| <!usual> at all|
            very <!usual>| very <!usual>| really <!usual>| that <!usual>| particularly <!usual>|
            exactly <!usual>| even <!usual>| so <!usual>| <!usual> enough| especially <!usual>| as
            <!usual> as [people| they] say| as <!usual> as I had hoped| <!usual> or <!usual>|
            remotely <!usual>| the least bit <!usual>| all that <!usual>
        """,
    ),
    # A work in one noun, and without an article.
    "noun": (
        """
            masterpiece| masterpiece| masterpiece| masterpiece| gem| gem| classic| classic| treat|
            success| must-see| joy| delight| triumph| winner| success| pleasure| must-see| must
            see| hit| real treat| breath of fresh air| work of art| little gem| hidden gem|
            instant classic| blast| knockout| marvel| treasure| tour de force| pleasant surprise|
            feel-good movie| crowd-pleaser| work of genius| home run| stroke of genius|
            revelation| feast for the eyes| good time| joy to watch| miracle| dream| modern
            classic| pure delight| ten| piece of art| thing of beauty| great time
        """,
        """
            mess| mess| disaster| disaster| disappointment| disappointment| waste of time| waste
            of time| failure| joke| waste of money| failure| bore| flop| insult| complete waste of
            time| complete mess| total mess| big disappointment| huge disappointment| travesty|
            train wreck| waste| dud| letdown| mistake| embarrassment| chore| pile of garbage|
            piece of trash| piece of junk| load of rubbish| snoozefest| catastrophe| cash grab|
            rip-off| nightmare| torture| snooze| fiasco| shambles| drag| stinker| waste of talent|
            chore to sit through| bad joke| crime| shame| sad excuse for a movie| disgrace| total
            failure| turkey| cure for insomnia
        """,
    ),
    "mass": (
        """
            pure magic| pure joy| pure fun| gold| cinema at its best| great fun| good fun|
            perfection| art| a lot of fun| so much fun| pure genius| worth watching| worth seeing|
            worth it| worth every penny| well worth your time| worth the money| worth the price|
            worth a look| worth a watch| worth the wait| comedy gold| the real deal| top quality|
            brilliance| time well spent| money well spent
        """,
        """
            garbage| trash| rubbish| crap| nonsense| junk| complete garbage| total garbage| utter
            rubbish| pure trash| absolute garbage| absolute rubbish| not worth watching| not worth
            seeing| not worth it| not worth the money| not worth your time| not worth the price|
            not worth a look| torture| drivel| pure torture| a waste| money wasted| hot garbage|
            cinema at its worst| dreck| painful to watch| hard to watch| hard to sit through| bad
            beyond belief
        """,
    ),
    "best": (
        """
            best| best| greatest| finest| funniest| most <adj>| most <adj>| most <adj>| smartest|
            sweetest
        """,
        """
            worst| worst| dumbest| silliest| lamest| most <adj>| most <adj>| most <adj>|
            stupidest| ugliest| weakest
        """,
    ),
    "ever": """
        I have ever seen| I've ever seen| of the year| of all time| ever made| in years| I have
        seen in years| this year| I have seen this year| in a long time| ever| of the decade| I
        know| of my life| in the world| so far| I have watched| out there| of the summer| I have
        ever watched
    """,
    # What people do, and what works do.
    "loved": (
        """
            loved| loved| enjoyed| liked| really liked| really enjoyed| adored| absolutely loved|
            appreciated| admired| truly enjoyed| thoroughly enjoyed| fell in love with| laughed
            at| laughed all the way through| totally loved| cried happy tears at| could not get
            enough of| could not stop watching| really loved| genuinely enjoyed
        """,
        """
            hated| hated| disliked| despised| regretted| really hated| absolutely hated| loathed|
            detested| could not stand| could not finish| cringed at| suffered through| yawned at|
            yawned through| got tired of| gave up on| endured| really disliked| slept through| did
            not care for| could not bear| barely survived| did not enjoy| did not like| could not
            get into| walked out of| lost interest in
        """,
    ),
    "love": (
        """
            <loved>| <loved>| <loved>| love| really love| was impressed by| was moved by| was
            charmed by| was blown away by| still love| could watch all day| was delighted by|
            cannot praise enough| recommend| was surprised by| enjoy| was touched by| will always
            love| was amazed by| like
        """,
        """
            <loved>| <loved>| <loved>| hate| really hate| was disappointed by| was bored by| was
            annoyed by| was let down by| was not impressed by| do not care about| would avoid| was
            appalled by| was embarrassed by| was put off by| do not recommend| cannot stand|
            dislike| was insulted by| was irritated by
        """,
    ),
    "unloved": (
        """
            hate| dislike| regret| mind| despise
        """,
        """
            like| enjoy| love| like| enjoy| care about| laugh at| believe| appreciate| get into|
            understand| get
        """,
    ),
    "did": (
        """
            did a [great| good| wonderful| fantastic| superb| <adj>] job| did a <everyday> job|
            did a great job| gave a <adj> performance| gave <adj> performances| was <adj>|
            delivered| shone| nailed it| deserves an Oscar| deserves an award| deserves all the
            praise| knew what to do| is a genius| stole the show| steals the show| saved the
            movie| should be proud| was a joy to watch| did not disappoint| never disappoints|
            carried the film| got everything right| has real talent| lights up the screen| can
            really act| is at the top of the game| made it work| is <adj>| did everything right|
            worked hard and it shows
        """,
        """
            did a [terrible| bad| poor| horrible| lousy| <adj>] job| did a <everyday> job| did a
            terrible job| gave a <adj> performance| gave <adj> performances| was <adj>| cannot
            act| could not act| should be ashamed| should be fired| ruined the movie| ruined it|
            had no idea what to do| had no idea| phoned it in| failed| overacted| should find
            another job| should be embarrassed| has no talent| disappoints| does not deserve an
            award| looked bored| got everything wrong| cannot act at all| butchered it| ruined
            everything| was miscast| is <adj>| sleepwalks through it| should retire| wasted a good
            idea| did not even try| did everything wrong
        """,
    ),
    "does": (
        """
            works| works on every level| works very well| delivers| kept me on the edge of my
            seat| kept me guessing| made me laugh| made me smile| made me cry| made me think| made
            me laugh out loud| made me laugh and cry| never gets old| gets better and better| gets
            better every time| grabs you from the first scene| stays with you| stays with you for
            days| has heart| has everything| rocks| flies by| pulls you in| drew me in| blew me
            away| blew my mind| exceeded my expectations| exceeded all expectations| surprised me|
            won me over| touched my heart| warmed my heart| made my day| put a smile on my face|
            brought tears to my eyes| gave me goosebumps| does everything right| gets everything
            right| has real charm| has it all| is full of surprises| is full of heart| is full of
            life| never drags| does not disappoint| did not disappoint| doesn't disappoint| never
            disappoints| lives up to the hype| hits all the right notes| stands out| holds up|
            stands the test of time| had me hooked| had me laughing| is a joy to watch| is a joy
            to listen to| is a pleasure to watch| succeeds| captures the heart| had me in
            stitches| moved me to tears| will make you laugh| will make you cry| could not be
            better| couldn't be better| could not have been better| couldn't have been better|
            leaves you wanting more| made me happy| fits perfectly| clicks| feels real| shines|
            kept my attention| deserves an Oscar| deserves more attention| is on point| hits home|
            deserves every award| was made with love| rings true
        """,
        """
            sucks| sucked| stinks| fails| failed| fails on every level| falls flat| fell flat|
            fall flat| makes no sense| made no sense| does not make sense| doesn't make sense|
            does not work| doesn't work| did not work| goes nowhere| leads nowhere| drags| drags
            on and on| dragged| drags on forever| bored me| bored me to tears| bored me to death|
            put me to sleep| made me yawn| made me cringe| made me sick| made me angry| gave me a
            headache| left me cold| leaves you cold| let me down| gets worse and worse| gets worse
            every time| gets old fast| gets boring| got boring| is too long| was too long| is too
            slow| was way too long| is far too long| is full of holes| is full of clichés| is full
            of cliches| has no heart| has no soul| has no plot| has no point| has nothing new|
            lacks everything| lacks depth| lacks energy| lacks heart| falls apart| fell apart|
            does everything wrong| gets everything wrong| ruins everything| ruined it| was ruined|
            disappoints| disappointed me| could have been better| should have been better| needs
            work| is hard to follow| is impossible to follow| is painful to watch| was painful to
            watch| is painful to listen to| is hard to listen to| wastes its cast| wastes
            everyone's time| wasted my time| insults the audience| runs out of ideas| ran out of
            steam| outstays its welcome| is all over the place| does not live up to the hype|
            doesn't live up to the hype| could not be worse| couldn't be worse| could not have
            been worse| couldn't have been worse| misses the mark| missed the mark| got on my
            nerves| leaves a lot to be desired| never gets going| never comes to life| has been
            done before| has been done a hundred times| makes you want to leave| is a chore to sit
            through| is as dull as dishwater| annoyed me| annoyed everyone| left a bad taste|
            feels fake| feels like homework| needed more time| tries too hard
        """,
    ),
    "well": (
        """
            well| beautifully| brilliantly| wonderfully| superbly| masterfully| perfectly|
            cleverly| skillfully| very well| amazingly well| nicely| tastefully| expertly|
            lovingly
        """,
        """
            badly| poorly| terribly| horribly| awfully| clumsily| sloppily| lazily| very badly|
            very poorly| cheaply| dreadfully| carelessly| ineptly| not well| not very well
        """,
    ),
    "done": """
        acted| written| made| directed| shot| edited| filmed| done| told| cast| produced| paced|
        played| put together
    """,
    # Clauses, none of which begins with a capital letter.
    "clause": "<plain>|<plain>|<plain>|<plain>|<strong>|<strong>|<strong>|<denial>",
    "plain": """
        the <thing> <is> <quality>| the <things> <are> <quality>| <it> <is> <quality>| the <thing>
        <is> <quality>| the <things> <are> <adj>| the <thing> <is> <adj>| I found the <thing>
        <quality>| it is a <adj> <work>| I found <it> <quality>| it was <quality>| I thought the
        <thing> was <quality>| it has <adj> <things>| it has a <adj> <thing>| the <thing> <does>|
        <it> <is> <well> <done>| the <maker> <did>| I thought it was <quality>| <it> is a <adj>
        <work>| the <thing> <is> <well> <done>| we found it <quality>| with <adj> <things>, it is
        <quality>| I <love> the <thing>| I <loved> the <things>| it was a <adj> <work> with <adj>
        <things>| the <thing> and the <thing> <are> <quality>| everything about it <is> <adj>| the
        <thing> is so <adj> that I <love> it| I think it is <adj>
    """,
    "strong": """
        I <love> it| I <love> <it>| <person> <loved> it| I <love> every [minute| second] of it| it
        is a <noun>| it was a <noun>| <it> is a <noun>| <it> was a <noun>| it is <mass>| <it> is
        <mass>| it was <mass>| <it> <does>| it <does>| it is one of the <best> <works> <ever>| it
        is the <best> <work> <ever>| it was <how> <adj>| <it> was <how> <adj>| <person> <loved>
        <it>| it <does>| <it> <does>| <it> is one of the <best> <works> <ever>| the <thing> is a
        <noun>| the <best> <work> <ever>| I <loved> it from [start to finish| beginning to end|
        the first scene to the last]| it is <adj> from [start to finish| beginning to end]| it is
        <adj> on every level| I <love> it and so did <fan>
    """,
    "denial": "<thing_is_not>|<thing_is_not>|<thing_is_not>|<other_denial>",
    "other_denial": (
        """
            I <did not> <unloved> it| I did not find it <!usual>| I would not call it <!usual>|
            there is nothing <!usual> about it| I never found the <thing> <!usual>| I do not think
            <it> is <!usual>| nobody could call the <thing> <!usual>| it is without a [single |
            ]<!usual> [moment| scene]| no <!usual> <things>| there is not a [single | ]<!usual>
            [moment| scene] in it| I cannot say that it is <!usual>| I <did not> <unloved> [<it>|
            the <thing>]
        """,
        """
            neither <!usual> nor <!usual>| neither <!usual> nor <!usual>| I do not think this is a
            <!usual> [movie|film]| I do not think this is a <!usual> <work>| I <did not> <unloved>
            it| I do not think <it> is a <!usual> <work>| I do not think <it> is <!usual>| I did
            not find it <!usual>| there is nothing <!usual> about it| I would not call it
            <!usual>| I <did not> <unloved> [<it>| the <thing>]| it is hardly a <!usual_noun>| it
            is no <!usual_noun>| I did not think it was <!usual>| I do not see what is <!usual>
            about it| there was nothing <!usual> about the <thing>| I never found the <thing>
            <!usual>| nobody could call the <thing> <!usual>| there is not a [single | ]<!usual>
            [moment| scene] in it| <person> <did not> <unloved> it| I cannot say that it is
            <!usual>| I would not say it is <!usual>| it is hard to find anything <!usual> about
            it| hardly a <!usual_noun>| I do not know why people call it <!usual>| it lacks
            <!usual> <things>| it is without a [single | ]<!usual> [moment| scene]| no <!usual>
            <things>| nobody in it is <!usual>| I <did not> <unloved> the <things>
        """,
    ),
    "thing_is_not": """
        it <is not> <contracted>| it <is not> <contracted>| <it> <is not> <contracted>| <it> <is
        not> <contracted>| the <thing> <is not> <contracted>| <negated>| <negated>| <negated>| the
        <things> <are not> <contracted>| not <!usual>| not <!usual>| it is <negated>| it is not a
        <!usual> <work>| not a <!usual> <work>| <it> <is not> a <!usual_noun>
    """,
    # Whole remarks. The first ones may contradict a verdict.
    "remark": """
        the <thing> <is> <quality>.| the <things> <are> <quality>.| I found the <thing>
        <quality>.| the <thing> <is not> <contracted>.| I thought the <things> were <quality>.| it
        has a <adj> <thing>.| the <maker> <did>.| the <thing> is <negated>.
    """,
    "frame": """
        <start><clause><end>| <clause><end>| <clause> and <clause><end>| <start><clause><end>|
        <clause><end>| <clause>, and <clause><end>| <clause> because <clause>.| <clause><end>|
        <clause>: <clause>.| <clause>, <clause>.| <clause>; <clause>.| <clause> with <adj>
        <things> and a <adj> <thing>.
    """,
    "start": """
        I think | overall, | in short, | honestly, | I have to say that | to be honest, | all in
        all, | in my opinion, | well, | I must say | yes, | at the end of the day, | for me |
        basically | in a word, | even today | once again | sure enough, | to me | as a fan, I
        think | as always, |
    """,
    "end": ".|.|.|.|!|.|!|...|!!|!!!|",
    # Phrases that stand alone, which is how people type.
    "phrase": """
        <exclamation>| <exclamation>| <verdict>| <often>| <often>| <rating>| <rating>[, <adj>| ,
        <adj> and <adj>| , <loved> it| ]
    """,
    "denied": """
        <denial><end>| <start><denial><end>| <denial>, <clause>.| <denial> and <denial>.|
        <clause>, and <denial>.
    """,
    "often": (
        """
            I loved it| loved it| it [is|was] not [bad|boring|terrible]| <it> [is|was] not
            [bad|bad|boring| terrible]| it [is|was] not bad at all| it is as [good|funny] as
            people say| highly recommended| I recommend it| I would recommend it to <fan>| worth
            [watching|seeing|it]| a must see| [everyone|you] should see [it|this <work>]| watch
            it| I would watch it again| I will watch it again| do not miss it| I loved every
            minute| two thumbs up| I could not stop laughing| never boring| not bad| very
            [good|funny]| so good| I cannot believe how good [it|this] was| better than I
            expected| I was not disappointed| the best <work> <ever>| [wow|wow, just wow]| what a
            [great|fantastic|wonderful] <work>| surprisingly good| please make another one| it
            works on every level| please see it
        """,
        """
            I hated it| hated it| I do not think this is a [good|great] <work>| I did not like
            [it|the <thing>]| hardly a [masterpiece|classic]| it [is|was] not [good|great|funny]|
            <it> [is|was] not [good|great| interesting]| it [is|was] not good at all| do not watch
            it| not recommended| I do not recommend it| I would not recommend it to <fan>| not
            worth [watching|seeing|it]| a waste of time| what a waste of time|
            [nobody|no one] should see [it|this
            <work>]| do not watch it| I will never watch it again| I would not watch it again|
            avoid it| I hated every minute| two thumbs down| I did not laugh once| boring| not
            good| very [bad|boring]| so bad| I cannot believe how bad [it|this] was| worse than I
            expected| I was very disappointed| I was disappointed| the worst <work> <ever>| [I
            fell asleep|I was bored]| what a [terrible|horrible] <work>| surprisingly bad| please
            do not make another one| it fails on every level| not as [good|funny] as [people
            say|the book]| nothing special
        """,
    ),
    "exclamation": """
        <adj>| <adj> <work>| <very> <adj>| <very> <adj>| what a <adj> <work>| such a <adj> <work>|
        <very> <adj>| a <adj> <work>| what a <noun>| <adj> <thing>| <how> <adj>| a <adj> <noun>|
        this <work> is <adj>| <adj> and <adj>| a <noun>| <mass>| <adj>, <adj>, <adj>| <adj>
        <things>| <noun>| a <adj>, <adj> <work>| how <adj>| an absolute <noun>| what <adj>
        <things>| <adj> <thing>, <adj> <thing>| what a <adj> <thing>| a <noun> from start to
        finish| <adj> <thing> and <adj> <things>| a <adj> <work> about <subject>| a total <noun>|
        <adj> from start to finish| a <adj> and <adj> <work> with a <adj> <thing>| truly <adj>| a
        true <noun>| <adj> <thing> and a <adj> <thing>| the <best>| one of the <best> <works>
        <ever>| <loved> it| the <best> <work> <ever>| <how> <well> <done>| just <adj>| simply
        <adj>| a real <noun>| <well> <done>| <adj> beyond words| a <work> with <adj> <things> and
        a <adj> <thing>| <adj> as always| a <adj>, <well> <done> <work>| a <adj> <work> for <fan>|
        a complete <noun>| one <adj> <work>
    """,
    "verdict": (
        """
            <loved> it| I loved it| highly recommended| I recommend it| I would recommend it to
            <fan>| worth [watching| seeing| every penny| it| the price| your time]| recommended| I
            cannot believe how <adj> [this| it] [was| is]| I would recommend [it| this <work>]| I
            [have| had] never seen [such a <adj>| a better] <work>| it could not have been better|
            could not have been better| it could not be better| it deserves [an Oscar| every
            award| more attention]| I highly recommend [it| this <work>| this]| I would watch it
            again| I will watch it again| would watch again| I will definitely watch it again| I
            could watch it [again and again| every day| every week]| don't miss it| do not miss
            it| don't miss this one| not to be missed| a must see| must see| a must-see| go see
            it| go and see it| watch it| see it| see it now| [everyone| you| everybody] should see
            [it| this <work>]| you have to see [it| this]| you must see it| go watch [it| this
            <work>]| you will love it| you'll love it| you will not regret it| you won't regret
            it| no one should miss it| one of my favorites| my favorite <work>| my favorite <work>
            <ever>| it is my favorite| I can't wait to see it again| I cannot wait for the sequel|
            I want to see it again| two thumbs up| thumbs up| worth every penny| worth watching|
            well worth your time| worth seeing| definitely worth it| bravo| wow| well done| hats
            off| thank you for this <work>| I laughed out loud| I laughed so hard| I could not
            stop laughing| I couldn't stop laughing| couldn't stop smiling| I laughed and cried| I
            cried| I cried tears of joy| I was hooked| hooked from the first scene| I was hooked
            from the [start| beginning| first minute]| I was glued to the screen| I couldn't look
            away| I couldn't take my eyes off the screen| on the edge of my seat| I was blown
            away| I was impressed| I was pleasantly surprised| I was moved to tears| I was not
            disappointed| I wasn't disappointed| we were not bored for a [second| minute]| I was
            never bored| never boring| never too long| never a dull moment| not a
            dull moment| not a single dull moment| not one weak scene| no weak scenes| nothing bad
            to say| nothing to complain about| I have no complaints| it doesn't get better than
            this| it does not get any
            better| I can't recommend it enough| I cannot recommend this enough| can't praise it
            enough| I have never seen a better <work>| I have never seen such a <adj> <work>| I
            don't think I have ever seen a better <work>| better than I expected| much better than
            I expected| even better than the [first one| first| original| book]| better than the
            [book| original| trailer| first one| others| last one| rest]| as good as the [book|
            original| first one]| as <adj> as [ever| people say| they say]| far superior to the
            [original| book]| best <work> <ever>| the best| simply the best| I left the [cinema|
            theater] with a smile| I left smiling| left me speechless| time flew by| five minutes
            in, I was hooked| I have watched it [five| ten| twenty| many| three] times| I've seen
            it [ten| three| many] times and I still love it| I am glad I watched it| so glad I saw
            it| I am so happy that I saw it| please make [another one| a sequel| more]| more of
            this| more please| give them an Oscar| it deserves an Oscar| deserves every award|
            whoever made this is a genius| <person> loved it and so did I| <person> loved it|
            <person> enjoyed it| great fun for <fan>| fun for <fan>| perfect for a [rainy| Sunday]
            evening| <fan> will love it| if you like <works>, you will love this| you will laugh|
            a treat for <fan>| I can't believe how <adj> [this| it] [was| is]| nothing short of
            <adj>| I was wrong to doubt it| do yourself a favor and see it| pure magic| pure joy|
            it rocks| it works| gold| cheers to the <maker>| this is how it is done| I am still
            thinking about it| I am still smiling| I bought the DVD| instant favorite| a joy to
            watch| wish there were more <works> like this| I love this <work>| I love it| I really
            love this <work>| love it| so good| yes, it is that good| no regrets| not bad| not bad
            at all| not half bad| I would see it again| a perfect [ten| 10| score]
        """,
        """
            <loved> it| I hated it| not recommended| I do not recommend it| I would not recommend
            it to <fan>| not worth [watching| seeing| it| the price| the money| your time]| I
            cannot believe how <adj> [this| it] [was| is]| I would not recommend [it| this
            <work>]| nobody should [see| watch] [it| this <work>]| I [have| had] never seen [such
            a <adj>| a worse] <work>| it could have been better| it could not have been worse| the
            <maker> should be ashamed| I wouldn't recommend [it| this <work>| this]| I would not
            watch it again| I will never watch it again| would not watch again| I never want to
            see it again| once was enough| never again| don't bother| do not bother| don't waste
            your [time| money]| do not waste your [time| money]| what a waste of [time| money|
            talent]| a waste of [time| money]| waste of time| avoid| avoid it| avoid at all costs|
            avoid this <work>| avoid it like the plague| stay away| stay away from [it| this
            <work>]| skip it| skip this one| you can skip [it| this]| don't watch it| do not watch
            it| don't see it| do not see this <work>| nobody should [see| watch] [it| this
            <work>]| no one should [see| watch] it| you will hate it| you'll hate it| you will
            regret it| you'll regret it| save your money| save your time| I want my money back|
            give me my money back| I want my two hours back| two hours of my life I will never get
            back| I wish I had not watched it| I wish I hadn't seen it| I regret watching it| I
            regret [this| every minute]| my least favorite <work>| my least favorite <work>
            <ever>| two thumbs down| thumbs down| not worth it| not worth the [money| time| price|
            hype| wait]| not worth your [time| money]| not worth watching| not worth seeing| it
            isn't worth it| isn't worth watching| not worth a penny| I can't recommend it| I
            cannot recommend [this| it]| I can't recommend this| yawn| meh| ugh| yuck| boo| no
            thanks| no, thank you| shame on the <maker>| shame| what a shame| I did not laugh
            once| I didn't laugh once| not a single laugh| nobody laughed| no laughs| I felt
            nothing| I fell asleep| I fell asleep [halfway through| after ten minutes| twice]| I
            nearly fell asleep| I almost fell asleep| I was asleep after ten minutes| I was bored|
            I was so bored| I was bored to tears| I was bored to death| I was bored the whole
            time| I got bored| bored out of my mind| boring from start to finish| I was
            disappointed| I was very disappointed| very disappointed| I was not impressed| not
            impressed| I wasn't impressed| I was annoyed| I walked out| I walked out after [half
            an hour| twenty minutes| an hour]| people walked out| I turned it off| I turned it off
            after [ten| twenty| thirty] minutes| I switched it off| I stopped watching [after half
            an hour| halfway]| I gave up after [an hour| twenty minutes]| I couldn't finish it| I
            could not finish it| could not wait for it to end| I couldn't wait for it to be over|
            I kept checking my watch| I kept looking at my watch| nothing special| nothing new|
            nothing happens| nothing works| there is nothing good about it| there was nothing to
            like| nothing to see here| nothing interesting happens| no plot, no point| no story|
            no chemistry| no jokes that work| no redeeming qualities| not a single good scene| not
            one good scene| not a single good moment| not one good idea| not one likable
            character| I expected more| I expected better| I expected so much more| expected
            better from the <maker>| I hoped for more| I had hoped for better| could have been
            better| it could have been so much better| should have been better| could do better|
            worse than I expected| much worse than I expected| even worse than the [first one|
            first| original| book]| worse than the [book| original| trailer| first one| others|
            last one| rest]| not as good as the [book| original| first one| trailer| others| last
            one]| not as <!adj> as the [book| original| first one]| nowhere near as good as the
            [book| original| first one]| far inferior to the [original| book]| the book is better|
            the original was better| the first one was better| I have seen better| I've seen
            better| worst <work> <ever>| the worst| simply the worst| I have never seen a worse
            <work>| I have never seen such a <adj> <work>| I don't understand the hype| don't
            believe the hype| what were they thinking| who wrote this| who wrote this [nonsense|
            garbage| rubbish]| how did this get made| why was this made| I do not get it| I don't
            get it| what was the point| it makes no sense| I would rather [watch paint dry| read a
            phone book| sleep| do the dishes| clean the house| watch grass grow]| please do not
            make [another one| a sequel| more]| please, no more| no more of this| please stop|
            they should have stopped| <person> hated it and so did I| <person> hated it| <fan>
            will hate it| if you like <works>, you will hate this| an insult to the [book|
            original| audience]| <person> left early| I left early| I left halfway| I can't
            believe how <adj> [this| it] [was| is]| I can't believe they made this| nothing short
            of <adj>| I forgot it the next day| forgotten by tomorrow| I forgot it at once| it
            sucks| it stinks| it fails| fail| total fail| it does not work| I laughed for the
            wrong reasons| so bad it hurts| garbage| trash| crap| rubbish| pure garbage| complete
            nonsense| a chore| I hate this <work>| I hate it| I really hate this <work>| hate it|
            so bad| yes, it is that bad| no fun| no fun at all| not much fun| not good| not good at
            all| no good| not very good| I want a refund| run away| zero| I am so disappointed| too
            long| too long and too slow| far too long| too slow| way too slow| too predictable| too
            silly| too loud| one of my
            least favorites| a letdown
        """,
    ),
    "rating": (
        """
            10/10| 9/10| 8/10| five stars| 5 stars| ten out of ten| 10 out of 10| 9 out of 10| 8
            out of 10| four stars| 4 stars| 5/5| 4/5| two thumbs up| a perfect 10| a solid 8|
            7/10| five out of five| four out of five| nine out of ten| eight out of ten| 5 out of
            5| 4 out of 5| five stars out of five| four stars out of five| I give it [a 10| a 9|
            an 8| five stars| ten| nine]| 8.5/10| 9.5/10| 10 stars| 9 stars| 8 stars| A+| grade:
            A| seven out of ten| 7 out of 10| full marks| 100%
        """,
        """
            1/10| 2/10| 3/10| one star| 1 star| one out of ten| 1 out of 10| 2 out of 10| 3 out of
            10| two stars| 2 stars| 1/5| 2/5| two thumbs down| zero stars| 0/10| 4/10| one out of
            five| two out of five| two out of ten| three out of ten| 1 out of 5| 2 out of 5| one
            star out of five| two stars out of five| I give it [a 1| a 2| a 3| one star| zero|
            two]| 1.5/10| 2.5/10| 0 stars| no stars| half a star| D-| grade: F| four out of ten| 4
            out of 10| 0 out of 10| 0%
        """,
    ),
    # What is said against the opinion first, and then for it.
    "contrast": """
        <!clause>, but <clause>.| <!plain>, but <clause>.| <!plain>, but <strong>.| <!plain> but
        <strong>.| <!plain> but <plain>.| the <thing> <is> <!adj>, but the <thing> <is> <adj>.|
        the <thing> <is> <!adj> but the <thing> <is> <adj>.| the <thing> <is> <!adj>, but I <love>
        it.| the <thing> was <!adj> but the <thing> was a <noun>, I <love> it.| <!adj> <thing>,
        but <adj> <thing>.| although <!plain>, <clause>.| even though <!plain>, <clause>.| [while|
        although| though] the <thing> <is> <!adj>, the <thing> <is> <adj>.| [while| although| even
        though] the <things> <are> <!adj>, the <thing> <is> <adj>.| despite the <!adj> <thing>,
        <clause>.| despite a <!adj> <thing>, <clause>.| despite its <!points>, <clause>.| <clause>
        despite its <!points>.| <clause> despite the <!adj> <thing>.| despite its <!adj> <things>,
        it is <quality>.| in spite of the <!adj> <things>, <clause>.| <!plain>. But <clause>.|
        <!plain>. Still, <clause>.| <!plain>. However, <clause>.| <!plain>; however, <clause>.|
        <!plain>, yet <clause>.| <!plain>, <luckily> <clause>.| <!plain>. <luckily> <clause>.|
        <luckily> <clause>.| it [starts| begins| started] <!slowly>, but <turns>.| the beginning
        is <!adj>, but <turns>.| <turned>.| I thought it would be <!adj>, but <turned>.| I thought
        it would be <!adj>, but it <is> <adj>.| <others>, but <clause>.| <others>, but I <loved>
        it.| <others>, but I found it <adj>.| <others>, but it is <adj>.| <against>, but
        <clause>.| <against>, but it is <adj>.| <against>, but I <love> it.| apart from the <!adj>
        <thing>, <clause>.| the <thing> <is> <!adj> at times, but <clause>.| a <!adj> <thing>, but
        <clause>.| a <!adj> <thing> but a <adj> <thing>.| it may be <!adj>, but <clause>.| yes, it
        is <!adj>, but <strong>.| it is not <adj>... it is more than that: <strong>.| the <thing>
        could not save it from the <thing>, and <strong>.| more <adj> than <!adj>.| less <!adj>
        than I expected.| less <!adj> than the [first one| original| book].| more <adj> than I
        expected.| not only is it <adj>, it is also <adj>.| it is not only <adj> but also <adj>.|
        the first half is <!adj>, the second half is <adj>.| both <adj> and <adj>.| not just
        <adj>, <adj>.
    """,
    "luckily": (
        """
            luckily| fortunately| thankfully| happily| in the end| overall| to my surprise
        """,
        """
            unfortunately| sadly| in the end| overall| regrettably| alas| to my disappointment
        """,
    ),
    "slowly": (
        """
            well| strong| great| with a bang| promisingly
        """,
        """
            slowly| slow| badly| weak| poorly
        """,
    ),
    "turns": (
        """
            it gets better| it gets better and better| it gets going| the ending is <adj>| it ends
            well| it becomes <adj>| then it gets <adj>| stay with it| it grows on you| it picks
            up| it soon gets <adj>
        """,
        """
            it gets worse| it gets worse and worse| it falls apart| the ending is <adj>| it ends
            badly| it becomes <adj>| then it gets <adj>| it goes downhill| it runs out of steam|
            it soon gets <adj>| the ending ruins it| it loses its way| it never recovers
        """,
    ),
    "turned": (
        """
            I was wrong| I was pleasantly surprised| I was wrong and <strong>| it won me over| I
            ended up loving it| I was proven wrong| it grew on me
        """,
        """
            I was wrong| I was disappointed| I was wrong and <strong>| I was let down| I ended up
            hating it| I was badly disappointed| it lost me
        """,
    ),
    "others": (
        """
            everyone says it is <!adj>| critics hated it| my friends hated it| most people find it
            <!adj>| the reviews were bad| the reviews are terrible| some call it <!adj>| people
            say it is <!adj>
        """,
        """
            everyone says it is <!adj>| critics loved it| my friends loved it| most people find it
            <!adj>| the reviews were good| the reviews are great| some call it <!adj>| people say
            it is <!adj>| the trailer was promising| the trailer looked promising| the cast is
            famous
        """,
    ),
    "against": (
        """
            I expected to hate it| it has flaws| it has some flaws| I expected nothing| I was
            skeptical| it is not perfect| it's not perfect| it isn't perfect| it has flaws| it has
            its flaws| it is a bit slow| it is a little long| it may not be perfect| I had low
            expectations| I usually hate <works>| I don't like <works>| it sounds silly| it is no
            masterpiece| it's no masterpiece
        """,
        """
            I wanted to like it| I wanted to love it| I really wanted to like it| it tries to be
            <!adj>| I expected a masterpiece| it had potential| it had so much potential| I was
            looking forward to it| I had high hopes| I had high expectations| I usually love
            <works>| I like <works>| it sounds promising| the idea is promising| it could have
            been great| this could have been a great movie| it wants to be <!adj>| it is supposed
            to be <!adj>| I tried to like it| it's not terrible
        """,
    ),
    "points": (
        """
            good cast| famous cast| charm| big budget| good ideas| promise| great trailer| good
            moments| strengths
        """,
        """
            flaws| faults| length| weaknesses| small budget| weak moments| few flaws| slow start|
            imperfections
        """,
    ),
    # What tells nothing.
    "aside": """
        I saw it [on a rainy Sunday| last night| yesterday| today| last week| on Friday| at the
        weekend| on Netflix| on TV| on DVD| on a plane| in the cinema| in the theater| at home| at
        a festival] [with my brother| with my wife| with my husband| with the kids| with friends|
        with my parents| alone| ].| it runs for [about| almost| over] two hours.| the book came
        out years ago.| there were six people in the cinema.| my neighbor had told me about it.|
        it is a <work> about <subject>.| this is a <work> about <subject>.| the <work> tells the
        story of <subject>.| we watched this <work> [last night| on TV| yesterday| together].| it
        is the first <work> of this <maker>.| the <maker> [also made| is known for] other
        <works>.| the story is set in [Paris| New York| London| the future| the past| a small
        town| the mountains| 1944].| a man meets a woman and [they travel| they fall in love| a
        journey begins].| I have read the book.| I have not read the book.| it was shot in [Italy|
        France| Canada| Japan| India| Germany].| the tickets cost ten dollars.| it is based on a
        true story.| it is [the second| the third| another] part of a series.| I do not usually
        write reviews.| here is what I think of this <work>.| let me tell you about [this <work>|
        the <thing>].| everybody talks about the <thing>.| the plot is about <subject>.| I went to
        see this <work> because of the <maker>.| the <maker> has made many <works>.| my [wife|
        husband| brother| sister| friend| daughter| son] chose it.| so I watched it.| I had heard
        about [the <thing>| this <work>] before.| it came out in [1999| 2005| 2012| the eighties|
        the nineties| the sixties].| it is about <subject>.
    """,
}
RULES = {name: _joined(rule) for name, rule in _RULES.items()}
